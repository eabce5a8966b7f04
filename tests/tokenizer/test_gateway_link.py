from __future__ import annotations

import pytest

from engine.gateway_link import GatewayLink
from engine.messages import Directory, TextReply
from engine.process import SyncStage
from telemetry.events import Stage
from telemetry.gauges import Gauge
from tests.factories import StageRun, byte_level_tokenizer, write_tokenizer_folder


@pytest.fixture
def run(tmp_path):
    run = StageRun(tmp_path, Stage.TOKENIZER, write_tokenizer_folder(tmp_path / "m", byte_level_tokenizer()))
    yield run
    run.close()


def test_a_gateway_is_stale_once_a_later_one_is_heard_of(run):
    link = GatewayLink(SyncStage(run.context))
    link.on_directory(Directory(1, "", []))
    assert not link.is_stale(1)
    assert not link.is_stale(2)  # its first message may come before the directory
    link.on_directory(Directory(1, "", []))
    assert link.is_stale(1)


def test_the_work_of_a_dead_gateway_is_stale_before_there_is_a_new_one(run):
    link = GatewayLink(SyncStage(run.context))
    link.on_directory(Directory(3, "", []))
    link.on_directory(Directory(0, "", []))
    assert link.is_stale(3)
    assert not link.is_stale(4)


def test_a_directory_without_a_gateway_at_the_start_makes_nobody_stale(run):
    link = GatewayLink(SyncStage(run.context))
    link.on_directory(Directory(0, "", []))
    assert not link.is_stale(1)


def test_messages_sent_are_counted_for_each_gateway_anew(run):
    link = GatewayLink(SyncStage(run.context))
    link.on_directory(Directory(1, "", []))
    link.send([TextReply("a", 1, ""), TextReply("b", 1, "")])
    assert run.context.gauges.get(Gauge.SENT_GATEWAY) == 2
    assert len(run.receive(run.gateway, 2)) == 2
    link.on_directory(Directory(2, "", []))
    assert run.context.gauges.get(Gauge.SENT_GATEWAY) == 0
    link.send([TextReply("c", 2, "")])
    assert run.receive(run.gateway) == [TextReply("c", 2, "")]

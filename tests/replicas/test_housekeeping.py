"""Ports, locks, leftovers and crash dumps."""

import msgspec
import pytest

from engine.config import Config
from engine.replicas import housekeeping
from engine.replicas.housekeeping import StartError
from engine.run_folder import ModelFiles, RunFolder, RunInfo
from telemetry.events import ProcessStarted, Stage
from telemetry.journal import JournalOwner, JournalReader, JournalWriter


def make_run(tmp_path, config=None, sockets="") -> RunFolder:
    folder = RunFolder(tmp_path / "run" / "one")
    model = ModelFiles("tiny", "/nowhere", "0", "0")
    folder.create(RunInfo("one", "", "host", config or Config(), model, str(sockets), 1))
    return folder


def test_a_port_in_use_is_named_with_the_flag_to_change():
    with housekeeping.listen("127.0.0.1", 0, "--port") as first:
        port = first.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} is already in use.*--port"):
            housekeeping.listen("127.0.0.1", port, "--port")


def test_an_address_that_is_not_ours_is_one_clear_line():
    with pytest.raises(StartError, match=r"cannot listen on 192\.0\.2\.1"):
        housekeeping.listen("192.0.2.1", 1234, "--port")


def test_two_systems_cannot_share_a_data_folder(tmp_path):
    with housekeeping.lock_data_folder(tmp_path), pytest.raises(StartError, match=r"pid \d+.*--data-dir"):
        housekeeping.lock_data_folder(tmp_path)
    housekeeping.lock_data_folder(tmp_path).close()


def test_sockets_of_a_killed_run_are_removed_but_nothing_else(tmp_path):
    sockets = housekeeping.new_socket_folder()
    (sockets / "x").touch()
    other = tmp_path / "precious"
    other.mkdir()
    make_run(tmp_path, sockets=sockets)
    housekeeping.remove_leftover_sockets(tmp_path)
    assert not sockets.exists()
    run = RunFolder(tmp_path / "run" / "two")
    run.create(RunInfo("two", "", "h", Config(), ModelFiles("m", "/", "0", "0"), str(other), 1))
    housekeeping.remove_leftover_sockets(tmp_path)
    assert other.exists()


def test_a_crash_dump_holds_readable_journals_and_no_secrets(tmp_path):
    folder = make_run(tmp_path, Config(api_key="s3cret", operator_token="t0ken"))
    journal = folder.journals / "r0.1.runner.journal"
    writer = JournalWriter(journal, JournalOwner(Stage.RUNNER, "r0", 1, 7))
    writer.append(ProcessStarted(5, 7))
    dump = housekeeping.dump_crash(tmp_path / "crash", folder, (Stage.RUNNER,), "r0", 1, "runner: killed by SIGKILL")
    assert list(JournalReader(dump / journal.name).read()) == [ProcessStarted(5, 7)]
    assert (dump / journal.name).stat().st_size == journal.stat().st_size
    assert (dump / "reason.txt").read_text() == "runner: killed by SIGKILL\n"
    text = (dump / "run.json").read_text()
    assert "s3cret" not in text and "t0ken" not in text
    assert msgspec.json.decode(text, type=RunInfo).run_id == "one"


def test_only_the_newest_crash_dumps_stay(tmp_path):
    folder = make_run(tmp_path)
    for incarnation in range(housekeeping.KEPT_CRASH_DUMPS + 5):
        housekeeping.dump_crash(tmp_path / "crash", folder, (Stage.RUNNER,), "r0", incarnation, "x")
    assert len(list((tmp_path / "crash").iterdir())) == housekeeping.KEPT_CRASH_DUMPS


def test_gauge_pages_of_the_dead_go_and_others_stay(tmp_path):
    folder = make_run(tmp_path)
    for name in ("gateway.1.gauges", "gateway.1-r0.2.gauges", "gateway.11.gauges", "r0.1.runner.gauges"):
        (folder.gauges / name).touch()
    housekeeping.remove_gauges(folder, (Stage.GATEWAY,), "", 1)
    assert sorted(p.name for p in folder.gauges.iterdir()) == ["gateway.11.gauges", "r0.1.runner.gauges"]

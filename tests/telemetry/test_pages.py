import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.events import Stage
from telemetry.gauges import Gauge, GaugePage, PageOwner
from telemetry.pages import Ledger, QueueDepths, replica_gauges

_numbers = itertools.count()


@pytest.fixture
def make_page(tmp_path):
    def make(stage, replica="r0", incarnation=1, peer="", pid=1, **gauges):
        page = GaugePage(tmp_path / f"{next(_numbers)}.gauges", PageOwner(stage, replica, incarnation, pid, peer))
        page.owner = PageOwner(stage, replica, incarnation, pid, peer)
        for name, value in gauges.items():
            page.set(Gauge[name], value)
        return page

    return make


def link(make_page, gateway=1, **gauges):
    return make_page(Stage.GATEWAY, "", gateway, "r0.1", **gauges)


def test_depth_is_what_all_others_sent_less_what_was_taken(make_page):
    pages = [
        link(make_page, SENT_TOKENIZER=10, TAKEN=4),
        make_page(Stage.TOKENIZER, TAKEN=7, SENT_SCHEDULER=6, SENT_GATEWAY=1),
        make_page(Stage.SCHEDULER, TAKEN=6, SENT_RUNNER=3, SENT_DETOKENIZER=5),
        make_page(Stage.RUNNER, TAKEN=3, SENT_SCHEDULER=2),
        make_page(Stage.DETOKENIZER, TAKEN=5, SENT_GATEWAY=5, SENT_SCHEDULER=1),
    ]
    assert QueueDepths().update(pages) == {
        ("gateway", "r0"): 2,
        ("tokenizer", "r0"): 3,
        ("scheduler", "r0"): 3,
        ("runner", "r0"): 0,
        ("detokenizer", "r0"): 0,
    }


def test_a_new_gateway_starts_from_an_empty_queue(make_page):
    depths = QueueDepths()
    tokenizer = make_page(Stage.TOKENIZER, TAKEN=90, SENT_GATEWAY=500)
    old = link(make_page, SENT_TOKENIZER=100, TAKEN=480)
    assert depths.update([old, tokenizer]) == {("gateway", "r0"): 20, ("tokenizer", "r0"): 10}
    new = link(make_page, gateway=2)
    assert depths.update([new, tokenizer]) == {("gateway", "r0"): 0, ("tokenizer", "r0"): 0}
    new.add(Gauge.SENT_TOKENIZER, 5)
    tokenizer.add(Gauge.TAKEN, 2)
    tokenizer.add(Gauge.SENT_GATEWAY, 1)
    assert depths.update([new, tokenizer]) == {("gateway", "r0"): 1, ("tokenizer", "r0"): 3}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_depths_are_never_negative(changes):
    class Page:
        def __init__(self, owner):
            self.owner, self.values = owner, {}

        def get(self, gauge):
            return self.values.get(gauge, 0)

    gateway = Page(PageOwner(Stage.GATEWAY, "", 1, 1, "r0.1"))
    tokenizer = Page(PageOwner(Stage.TOKENIZER, "r0", 1, 1))
    depths = QueueDepths()
    for sent, taken in changes:
        gateway.values[Gauge.SENT_TOKENIZER], tokenizer.values[Gauge.TAKEN] = sent, taken
        assert depths.update([gateway, tokenizer])["tokenizer", "r0"] >= 0


def test_only_the_latest_incarnation_counts(make_page):
    pages = [
        make_page(Stage.SCHEDULER, incarnation=2, RUNNING=2, BLOCKS_ACTIVE=3, BLOCKS_TOTAL=10),
        make_page(Stage.SCHEDULER, incarnation=1, RUNNING=9),
    ]
    gauges = replica_gauges(pages)["r0"]
    assert gauges.value("running") == 2
    assert gauges.kv_usage == pytest.approx(0.3)
    assert gauges.last_step_age_s == 0.0
    assert set(QueueDepths().update(pages)) == {("scheduler", "r0")}


@given(st.lists(st.tuples(st.integers(1, 3), st.floats(0, 100)), max_size=30))
def test_a_ledger_never_falls(notes):
    ledger = Ledger()
    last = 0.0
    for incarnation, value in notes:
        total = ledger.note(("runner", "r0"), (incarnation, 7), value)
        assert total >= last
        last = total


def test_a_ledger_adds_up_processes_and_goes_on_from_a_dump():
    ledger = Ledger()
    ledger.note(("runner", "r0"), (1, 7), 10.0)
    ledger.note(("runner", "r0"), (2, 8), 3.0)
    ledger.note(("runner", "r0"), (1, 7), 99.0)  # an old page that is still there
    again = Ledger()
    again.load(ledger.dump())
    again.note(("runner", "r0"), (2, 8), 5.0)
    assert again.totals() == {("runner", "r0"): 15.0}

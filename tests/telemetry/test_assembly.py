import itertools
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.assembly import ORPHAN_NS, SETTLE_NS, STALE_NS, Assembly
from telemetry.events import FinishReason, ReplicaState, Stage, WaitReason
from telemetry.facts import Scope
from tests.telemetry.factories import Story

MS = 1_000_000


def assemble(story, at=100.0, assembly=None):
    """Feed everything, gateway first, and close what is complete at `at` ms."""
    assembly = assembly or Assembly("run")
    entries, story.entries = story.entries, []
    for owner, record in sorted(entries, key=lambda e: e[0].stage is not Stage.GATEWAY):
        assembly.feed(owner, record)
    return assembly.advance(story.ns(at))


def only(facts):
    assert len(facts) == 1
    return facts[0]


def parts_add_up(facts):
    times = facts.times
    parts = (
        times.tokenize_s,
        times.queue_s,
        times.preempted_s,
        times.prefill_s,
        times.decode_s,
        times.drain_s,
        times.transport_s,
        times.unaccounted_s,
    )
    return sum(part or 0.0 for part in parts) == pytest.approx(times.e2e_s, abs=1e-9)


def test_a_usual_request_has_every_part_of_its_time_accounted_for():
    story = Story()
    story.complete_request()
    facts = only(assemble(story))
    times = facts.times
    assert facts.finish_reason == "stop"
    assert facts.replica == "r0"
    assert facts.incarnation_id == "run/r0.1"
    assert facts.sequences[0].token_ids == [11, 12, 13]
    assert times.e2e_s == pytest.approx(0.061)
    assert times.ttft_s == pytest.approx(0.031)
    assert times.tokenize_s == pytest.approx(0.001)
    assert times.transport_s == pytest.approx(0.003)
    assert times.queue_s == pytest.approx(0.006)
    assert times.prefill_s == pytest.approx(0.020)
    assert times.decode_s == pytest.approx(0.020)
    assert times.drain_s == pytest.approx(0.011)
    assert times.tpot_s == pytest.approx(0.010)
    assert times.detokenize_s == pytest.approx(0.0003)
    assert facts.sequences[0].gaps_s() == pytest.approx([0.010, 0.010])
    assert times.unaccounted_s < 0.02 * times.e2e_s
    assert parts_add_up(facts)
    assert facts.wasted == {}


def test_tokens_past_the_end_are_waste():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12, 13, 14, 15])
    story.ended(seq, at=71, tokens=5)
    story.detokenized(seq, tokens=3, stop_string="END")
    story.finished(at=60, outputs=[3])
    story.sent(at=61)
    facts = only(assemble(story))
    assert facts.sequences[0].token_ids == [11, 12, 13]
    assert facts.sequences[0].stop_string == "END"
    assert facts.wasted == {"stop": 2}
    assert facts.times.last_sampled_ns == story.ns(50)
    assert parts_add_up(facts)


def test_a_single_token_has_no_tpot_and_no_itl():
    story = Story()
    story.complete_request(tokens=(11,), reason=FinishReason.LENGTH)
    facts = only(assemble(story))
    assert facts.times.tpot_s is None
    assert facts.sequences[0].gaps_s() == []
    assert facts.times.decode_s == 0.0


@pytest.mark.parametrize(
    ("times_ms", "gaps_ms"),
    [
        ([10, 20, 50], [10, 30]),
        ([10, 40, 40, 40], [10, 10, 10]),
        ([10, 30, 30, 35], [10, 10, 5]),
        ([10, 10], [0]),
        ([], []),
    ],
)
def test_a_step_that_yields_k_tokens_gives_k_gaps_of_a_kth(times_ms, gaps_ms):
    story = Story()
    story.complete_request()
    sequence = only(assemble(story)).sequences[0]
    sequence = msgspec.structs.replace(sequence, token_times_ns=[ms * 1_000_000 for ms in times_ms])
    assert sequence.gaps_s() == pytest.approx([ms / 1e3 for ms in gaps_ms])


def test_a_request_refused_by_the_gateway_is_complete_at_once():
    story = Story()
    story.received(num_sequences=0)
    story.finished(at=1, reason=FinishReason.ERROR, status=400, error_type="invalid_request_error")
    story.sent(at=2)
    facts = only(assemble(story, at=2))
    assert facts.error_type == "invalid_request_error"
    assert facts.replica == ""
    assert facts.sequences == []
    assert facts.times.ttft_s is None
    assert parts_add_up(facts)


def test_a_request_refused_by_the_tokenizer_is_complete_at_once():
    story = Story()
    story.received()
    story.routed()
    story.tokenized(error="too long")
    story.finished(at=4, reason=FinishReason.ERROR, status=400, error_type="invalid_request_error")
    story.sent(at=5)
    facts = only(assemble(story, at=5))
    assert facts.times.tokenize_s == pytest.approx(0.001)
    assert parts_add_up(facts)


def abort(story, seq=None, at=50.0, delivered=0):
    story.finished(at=at, reason=FinishReason.ABORT, status=0, outputs=[delivered])
    story.sent(at=at)
    if seq is not None:
        story.ended(seq, at=at + 1, reason=FinishReason.ABORT, tokens=delivered)


def test_abort_while_queued():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.waits(seq, 5, WaitReason.MAX_RUNNING)
    abort(story, seq)
    facts = only(assemble(story))
    assert facts.finish_reason == "abort"
    assert facts.error_type == "abort"
    assert facts.times.queue_s == pytest.approx(0.046)
    assert facts.times.prefill_s is None
    assert parts_add_up(facts)


def test_abort_in_prefill():
    story = Story()
    story.received()
    story.routed()
    story.tokenized(prompts=[list(range(100))])
    seq = story.queued(prompt_tokens=100)
    story.admitted(seq)
    story.step(30, (seq, 0, 64, -1))
    abort(story, seq)
    facts = only(assemble(story))
    assert [chunk.tokens for chunk in facts.sequences[0].chunks] == [64]
    assert facts.times.prefill_s == pytest.approx(0.040)
    assert facts.times.decode_s is None
    assert parts_add_up(facts)


def test_abort_in_decode_counts_what_was_not_delivered_as_waste():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12, 13, 14], first_at=20, gap=5)
    story.first_increment(at=21)
    story.finished(at=36, reason=FinishReason.ABORT, outputs=[3])
    story.sent(at=36)
    story.ended(seq, at=37, reason=FinishReason.ABORT, tokens=4)
    facts = only(assemble(story))
    assert facts.sequences[0].token_ids == [11, 12, 13]
    assert facts.wasted == {"abort": 1}
    assert parts_add_up(facts)


def test_abort_before_tokenization_waits_for_the_stages_then_gives_up():
    story = Story()
    story.received()
    story.routed()
    abort(story, at=2)
    assembly = Assembly("run")
    assert assemble(story, at=3, assembly=assembly) == []
    facts = only(assembly.advance(story.ns(2) + SETTLE_NS + 1))
    assert facts.finish_reason == "abort"


def test_a_request_waits_for_the_ends_of_its_sequences():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12, 13])
    story.finished(outputs=[3])
    story.sent()
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    story.ended(seq, tokens=4)
    assert assemble(story, assembly=assembly) == [], "one of its tokens has not been seen"
    story.step(60, (seq, 6, 1, 14))
    assert only(assemble(story, assembly=assembly)).wasted == {"stop": 1}


def test_preemption_in_decode_is_taken_out_of_decode():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12])
    story.preempted(seq, at=42, lost=5)
    story.waits(seq, 42, WaitReason.PREEMPTED)
    story.admitted(seq, at=62, attempt=1)
    story.step(70, (seq, 0, 6, 13))
    story.ended(seq, at=71, preemptions=1)
    story.first_increment()
    story.finished(at=75, outputs=[3])
    story.sent(at=76)
    facts = only(assemble(story))
    sequence = facts.sequences[0]
    assert sequence.preemptions == facts.preemptions == 1
    assert sequence.preempted == [(story.ns(42), story.ns(62))]
    assert facts.times.preempted_s == pytest.approx(0.020)
    assert facts.times.decode_s == pytest.approx(0.020)
    assert facts.wasted == {"preempted": 5}
    assert [c.tokens for c in sequence.chunks] == [4, 6]
    assert [reason for _, reason in sequence.waits] == ["", "preempted", ""]
    assert parts_add_up(facts)


def test_abort_while_preempted():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12])
    story.preempted(seq, at=42)
    abort(story, seq, at=60, delivered=2)
    facts = only(assemble(story))
    assert facts.times.preempted_s == pytest.approx(0.018)
    assert facts.times.drain_s == 0.0
    assert parts_add_up(facts)


def test_several_choices_and_prompts_are_sequences_and_the_last_one_gives_the_parts():
    story = Story()
    story.received(num_sequences=4)
    story.routed()
    story.tokenized(prompts=[[1, 2], [3, 4, 5]])
    seqs = [story.queued(index=i, prompt_index=i // 2, prompt_tokens=2 + i // 2) for i in range(4)]
    for i, seq in enumerate(seqs):
        story.admitted(seq, at=10 + i, cached=1 + i % 2)
        story.generate(seq, [20 + i, 30 + i], first_at=30 + i, gap=10 + i)
        story.ended(seq, at=60, tokens=2)
        story.detokenized(seq, index=i, tokens=2)
    story.finished(outputs=[(2, "stop"), (1, "length"), (2, "stop"), (2, "stop")])
    story.sent()
    facts = only(assemble(story))
    assert [s.index for s in facts.sequences] == [0, 1, 2, 3]
    assert [s.prompt_index for s in facts.sequences] == [0, 0, 1, 1]
    assert facts.sequences[1].finish_reason == "length"
    assert facts.output_tokens == 7
    assert facts.prompt_tokens == 5
    assert facts.cached_tokens == 2, "each prompt's first choice counts, as in usage"
    assert facts.times.last_sampled_ns == story.ns(46)
    assert parts_add_up(facts)


def test_a_replica_that_dies_ends_what_its_stages_owe():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12])
    story.died(Stage.RUNNER, at=45)
    story.finished(at=46, reason=FinishReason.ERROR, outputs=[2], error_type="replica_died")
    story.sent(at=47)
    assembly = Assembly("run")
    assemble(story, assembly=assembly)
    facts = only(assembly.advance(story.ns(101)))
    assert facts.error_type == "replica_died"
    assert facts.sequences[0].token_ids == [11, 12]
    assert parts_add_up(facts)


def test_a_retry_on_another_replica_is_the_one_that_counts():
    story = Story()
    story.received()
    story.routed(at=1)
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11])
    story.replica_state(ReplicaState.UNHEALTHY, at=35)
    story.replica, story.incarnation = "r1", 4
    story.routed(at=41, attempt=1)
    story.tokenized(start=42, end=43)
    again = story.queued(at=44)
    story.admitted(again, at=50)
    story.generate(again, [21, 22], first_at=60)
    story.first_increment(at=61)
    story.ended(again, at=71, tokens=2)
    story.detokenized(again, first=60.5, at=71, tokens=2)
    story.finished(at=80, outputs=[2])
    story.sent(at=81)
    facts = only(assemble(story))
    assert facts.scope == Scope("r1", 4)
    assert facts.sequences[0].token_ids == [21, 22]
    assert facts.wasted == {"retry": 1}
    assert facts.times.unaccounted_s == pytest.approx(0.040), "the lost attempt"
    assert parts_add_up(facts)


def test_a_gateway_that_dies_leaves_an_error():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [11, 12])
    story.first_increment()
    story.died(Stage.GATEWAY, at=45)
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    story.ended(seq, at=50, reason=FinishReason.ABORT, tokens=2)
    facts = only(assemble(story, at=101, assembly=assembly))
    assert facts.finish_reason == "error"
    assert facts.error_type == "gateway_died"
    assert facts.times.e2e_s == pytest.approx(0.045)
    assert facts.sequences[0].token_ids == [11, 12]


def test_a_request_that_was_finished_when_its_gateway_died_keeps_its_end():
    story = Story()
    story.complete_request()
    story.entries = [(o, r) for o, r in story.entries if type(r).__name__ != "ResponseSent"]
    story.died(Stage.GATEWAY, at=61)
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    facts = only(assembly.advance(story.ns(101)))
    assert facts.finish_reason == "stop"
    assert facts.times.e2e_s == pytest.approx(0.060)


def test_a_new_gateway_is_not_touched_by_the_death_of_the_old_one():
    story = Story()
    story.died(Stage.GATEWAY, at=0)
    story.received()
    story.entries[-1] = (story.entries[-1][0].__class__(Stage.GATEWAY, "", 2, 102), story.entries[-1][1])
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    assert assembly.advance(story.ns(5000)) == []
    assert assembly.open_ids() == {"req-1"}


def test_seq_ids_of_different_incarnations_are_different_sequences():
    assembly = Assembly("run")
    for incarnation in (1, 2):
        story = Story(incarnation=incarnation)
        story.complete_request(f"req-{incarnation}", tokens=(10 * incarnation, 5))
        facts = only(assemble(story, assembly=assembly))
        assert facts.sequences[0].token_ids == [10 * incarnation, 5]


def test_records_that_come_after_the_end_open_nothing():
    story = Story()
    seq = story.complete_request()
    assembly = Assembly("run")
    assemble(story, assembly=assembly)
    story.detokenized(seq)
    story.step(80, (seq, 6, 1, 14))
    assert assemble(story, assembly=assembly) == []
    assert assembly.open_ids() == set()


def test_a_record_without_its_request_is_kept_for_a_while_then_shed():
    story = Story()
    story.tokenized()
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    assert assembly.live() == []
    assert assembly.advance(story.ns(3) + ORPHAN_NS + 1) == []
    assert assembly.shed == 1
    assert assembly.open_ids() == set()


def test_too_many_open_requests_are_shed_and_counted():
    story = Story()
    for i in range(5):
        story.received(f"req-{i}")
        story.routed(f"req-{i}")
    assembly = Assembly("run", max_open=3)
    assemble(story, assembly=assembly)
    assert len(assembly.open_ids()) == 3
    assert assembly.shed == 2


def test_a_request_whose_end_was_lost_is_closed_in_the_end():
    story = Story()
    story.received()
    assembly = Assembly("run")
    assert assemble(story, assembly=assembly) == []
    facts = only(assembly.advance(story.ns(0) + STALE_NS + 1))
    assert facts.error_type == "records_lost"


def test_when_all_has_ended_open_requests_are_errors_and_finished_ones_are_not():
    story = Story()
    story.received("open")
    story.complete_request("done")
    assembly = Assembly("run")
    for owner, record in story.entries:
        assembly.feed(owner, record)
    facts = {f.request_id: f for f in assembly.close_all(story.ns(90), "engine_died", "the engine died")}
    assert facts["open"].error_type == "engine_died"
    assert facts["done"].finish_reason == "stop"


def test_live_requests_go_through_their_states():
    story = Story()
    assembly = Assembly("run")

    def state():
        assemble(story, at=1, assembly=assembly)
        found = assembly.live()
        return only(found).state, found[0].output_tokens

    story.received()
    assert state() == ("tokenizing", 0)
    assert assembly.live() == [], "nothing has changed"
    story.routed()
    story.tokenized()
    seq = story.queued()
    assert state() == ("waiting", 0)
    story.admitted(seq)
    assert state() == ("running", 0)
    story.generate(seq, [1, 2])
    assert state() == ("running", 2)
    story.preempted(seq, at=45)
    assert state() == ("waiting", 2)


def test_steps_are_resolved_to_requests():
    story = Story()
    story.received()
    seq = story.queued(prompt_tokens=10)
    story.admitted(seq)
    story.step(20, (seq, 0, 8, -1))
    story.step(30, (seq, 8, 2, 11), (999, 5, 1, 3), head_seq_id=seq)
    story.step(40, (seq, 10, 1, 12))
    assembly = Assembly("run")
    assemble(story, assembly=assembly)
    steps = assembly.take_steps()
    assert [s.rows for s in steps] == [
        [("req-1", 0, 0, 8, -1)],
        [("req-1", 0, 8, 2, 11), ("", 0, 5, 1, 3)],
        [("req-1", 0, 10, 1, 12)],
    ]
    assert [s.prompt_tokens for s in steps] == [8, 2, 0]
    assert [s.sampled_tokens for s in steps] == [0, 2, 1]
    assert [s.gaps_s for s in steps] == [[], [], [pytest.approx(0.010)]]
    assert steps[1].head_request_id == "req-1"
    assert steps[0].duration_s == pytest.approx(0.0042)
    assert assembly.take_steps() == []


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), cuts=st.integers(1, 6))
def test_the_order_of_journals_and_passes_does_not_matter(seed, cuts):
    """Each journal keeps its own order; passes read any prefix of each, the gateway's first."""
    story = Story()
    for i in range(5):
        story.complete_request(f"req-{i}", at=7.0 * i, tokens=tuple(range(i + 1)))
    chance = random.Random(seed)
    journals = {}
    for owner, record in story.entries:
        journals.setdefault(owner, []).append(record)
    assembly = Assembly("run")
    closed = []
    for last in [False] * cuts + [True]:
        for owner in sorted(journals, key=lambda o: (o.stage is not Stage.GATEWAY, chance.random())):
            count = len(journals[owner]) if last else chance.randint(0, len(journals[owner]))
            for record in itertools.islice(list(journals[owner]), count):
                assembly.feed(owner, record)
            del journals[owner][:count]
        closed += assembly.advance(story.ns(150))
    assert sorted(f.request_id for f in closed) == [f"req-{i}" for i in range(5)]
    for facts in closed:
        number = int(facts.request_id[-1])
        assert facts.sequences[0].token_ids == list(range(number + 1))
        assert facts.times.unaccounted_s < 0.02 * facts.times.e2e_s
        assert facts.wasted == {}

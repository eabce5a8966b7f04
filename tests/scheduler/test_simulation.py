"""The whole scheduler against the simulated runner: random arrivals, aborts, stop hits, pools and budgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.messages import Enqueue
from telemetry.events import FinishReason, SequenceEnded, SequencePreempted, SequenceQueued
from tests.scheduler.simulation import Simulation, answer_alone, ended, make_limits

prompts = st.lists(
    st.one_of(
        st.lists(st.integers(0, 1), min_size=1, max_size=10),
        st.integers(1, 40).map(lambda n: [3, 1, 4, 1, 5, 9, 2, 6] * 5 + [n])
        | st.integers(1, 40).map(lambda n: ([3, 1, 4, 1, 5, 9, 2, 6] * 5)[:n]),
    ),
    min_size=1,
    max_size=2,
)


class SchedulerMachine(RuleBasedStateMachine):
    """Every answer must be the one that the model gives alone, or its beginning where it was cut short."""

    @initialize(
        num_blocks=st.integers(2, 24),
        block_size=st.integers(1, 8),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(1, 40),
        prefix_cache=st.booleans(),
        max_in_flight=st.integers(1, 2),
        prefill_share=st.sampled_from([0.1, 0.5, 1.0]),
    )
    def start(self, budget: int, **limits: Any) -> None:
        self.sim = Simulation(make_limits(max_num_batched_tokens=budget, priority_aging_ns=1_000, **limits))
        self.requests: dict[str, Enqueue] = {}
        self.cut: set[str] = set()
        self.stopped: set[int] = set()

    @rule(
        prompt=prompts,
        n=st.integers(1, 2),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        ignore_eos=st.booleans(),
        stop_token_ids=st.sampled_from([(), (11, 12, 13)]),
        priority=st.integers(-3, 3),
        cache_salt=st.sampled_from(["", "one", "other"]),
    )
    def arrive(self, prompt: Any, **how: Any) -> None:
        name = f"q{len(self.requests)}"
        self.requests[name] = self.sim.enqueue(prompt, request_id=name, seed=len(self.requests), **how)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        self.sim.abort(name)
        self.cut.add(name)

    @precondition(lambda self: self.sim.answers)
    @rule(data=st.data())
    def stop_hit(self, data: Any) -> None:
        seq_id = data.draw(st.sampled_from(sorted(self.sim.answers)))
        self.sim.stop_hit(seq_id)
        self.stopped.add(seq_id)

    @rule()
    def reset_cache(self) -> None:
        cached = self.sim.pool.num_cached
        assert self.sim.scheduler.reset_cache() == cached
        assert self.sim.pool.num_cached == 0

    @rule()
    def turn(self) -> None:
        self.sim.begin()

    @precondition(lambda self: self.sim.plan is not None)
    @rule()
    def result(self) -> None:
        self.sim.end()
        self.sim.begin()

    @rule(steps=st.integers(1, 12))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            if self.sim.plan is not None:
                self.sim.end()
            self.sim.begin()

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "sim"):
            return
        scheduler = self.sim.scheduler
        assert self.sim.pool.problem() == ""
        assert len(scheduler.running) <= self.sim.limits.max_num_seqs
        for sequences in (list(scheduler.queue), scheduler.running.sequences):
            ranks = [sequence.rank for sequence in sequences]
            assert ranks == sorted(ranks)
        reasons = [sequence.wait_reason for sequence in scheduler.queue if sequence.wait_reason]
        assert all(scheduler.queue.counts[reason] == reasons.count(reason) for reason in scheduler.queue.counts)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.begin()
        sequences = len(self.sim.journal.of(SequenceQueued))
        self.sim.run(most_steps=10 + 3 * sequences * self.sim.limits.longest_sequence)
        self.sim.check_idle()
        self._check_ends()
        self._check_answers()

    def _check_ends(self) -> None:
        ends = ended(self.sim)
        queued = [record.seq_id for record in self.sim.journal.of(SequenceQueued)]
        assert sorted(ends) == sorted(queued)
        preemptions = len(self.sim.journal.of(SequencePreempted))
        assert preemptions == sum(record.preemptions for record in self.sim.journal.of(SequenceEnded))
        for seq_id, reason in ends.items():
            if seq_id not in self.stopped:
                assert self.sim.answers[seq_id].finish == reason

    def _check_answers(self) -> None:
        ends = ended(self.sim)
        for record in self.sim.journal.of(SequenceQueued):
            message = self.requests[record.request_id]
            prompt = message.prompts[record.prompt_index]
            longest = self.sim.limits.longest_sequence
            expected, finish = answer_alone(prompt, record.seed, message.params, longest)
            answer = self.sim.answers.get(record.seq_id)
            got = answer.token_ids if answer else []
            assert got == expected[: len(got)]
            if record.seq_id not in self.stopped and ends[record.seq_id] is not FinishReason.ABORT:
                assert (got, ends[record.seq_id]) == (expected, finish)
            elif ends[record.seq_id] is FinishReason.ABORT:
                assert record.request_id in self.cut


def check(max_examples: int, steps: int) -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_answers_are_those_of_each_sequence_alone() -> None:
    check(max_examples=120, steps=40)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_answers_are_those_of_each_sequence_alone_for_long() -> None:
    check(max_examples=3000, steps=120)

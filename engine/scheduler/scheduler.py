"""The scheduler: who runs, on which blocks, in which step.

A turn is three calls (`stage`): apply(result), schedule(), submit(step). How many steps may be in flight makes
the two loops, plain and overlapped::

    one   scheduler   plan 1 ·········· apply 1 plan 2 ·········· apply 2 plan 3 ··
          runner             [step 1]··················[step 2]··················

    two   scheduler   plan 1 plan 2 ··· apply 1 plan 3 · apply 2 plan 4 ·
          runner             [step 1][step 2          ][step 3        ]

Overlapped, a step is planned before the tokens of the one before are known: they have their places (counts and
blocks), and the runner puts the ids in. That a sequence ended by its last token is learned one step late; its
row in the next step is waste. The runner executes in the order of the plans, so that a block may be given to
the next plan while the one in flight still writes to it.

Everything else arrives in between and only changes what the next `schedule` finds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from engine.gateway_watch import GatewayWatch
from engine.messages import Abort, DataMessage, Enqueue, PromptLogprobs, StepResult, StepTokens, StopHit
from engine.scheduler.arrivals import Arrivals
from engine.scheduler.kv_cache import KVCache
from engine.scheduler.limits import Limits
from engine.scheduler.planner import Planner
from engine.scheduler.running_batch import RunningBatch
from engine.scheduler.sequence import NO_SLOT, Sequence
from engine.scheduler.sequence_table import SequenceTable
from engine.scheduler.step import Step, Surroundings
from engine.scheduler.step_cost import StepCost
from engine.scheduler.waiting_queue import WaitingQueue
from telemetry.events import FinishReason, Record, SequenceAdmitted, SequencePreempted, WaitChanged, WaitReason


class Outgoing(Protocol):
    """Where messages go, in order (`engine.transport.Outbox`)."""

    def send(self, message: DataMessage) -> None:
        """Queue one message."""

    def send_many(self, messages: Iterable[DataMessage]) -> None:
        """Queue several that are taken together."""


class Recorder(Protocol):
    """Where records go (`engine.process.Journal`)."""

    def append(self, record: Record) -> None:
        """Append one record."""


class Scheduler:
    """All state of one replica's scheduling. Single-threaded; every call returns at once."""

    def __init__(self, limits: Limits, *, journal: Recorder, runner: Outgoing, detokenizer: Outgoing, log: Any) -> None:
        self.queue = WaitingQueue()
        self.running = RunningBatch(limits.max_num_seqs)
        self.kv = KVCache(limits.num_blocks, limits.block_size, prefix_cache=limits.prefix_cache)
        self.last_step_id = 0
        self.last_step_ns = 0  # when the last step's result was taken
        self.pending_since_ns = 0  # since when there is work without a step's result; 0 when idle
        self._arrivals = Arrivals(limits)
        self._gateways = GatewayWatch()
        self._table = SequenceTable()
        self._planner = Planner(self.queue, self.running, self.kv, limits.max_num_batched_tokens, limits.prefill_share)
        self._cost = StepCost()
        self._journal = journal
        self._runner = runner
        self._detokenizer = detokenizer
        self._log = log
        self._news: list[DataMessage] = []  # for the detokenizer, not sent yet
        self._in_flight: deque[tuple[Step, Surroundings]] = deque()  # oldest first
        self._max_in_flight = limits.max_in_flight
        self._held_up_by = WaitReason.TOKEN_BUDGET
        self._idle = True
        self._counted = (0, 0, 0)  # evicted blocks, queried tokens, hit tokens up to the last step

    # --- what arrives -----------------------------------------------------------------------------------

    def enqueue(self, message: Enqueue) -> None:
        """Queue a request's sequences, or refuse it."""
        if not self._accepts(message.gateway):
            return
        refusal = self._arrivals.refusal(message)
        if refusal is not None:
            self._news.append(refusal)
            return
        now_ns = time.monotonic_ns()
        self.pending_since_ns = self.pending_since_ns or now_ns
        for sequence in self._arrivals.sequences(message, now_ns):
            self._table.add(sequence)
            self.queue.push(sequence)
            self._journal.append(sequence.queued_record(now_ns))

    def abort(self, message: Abort) -> None:
        """End what is left of a request, wherever it is, and say so per sequence."""
        if not self._accepts(message.gateway):
            return
        for sequence in self._table.of_request(message.request_id):
            self._news.append(sequence.end_message(FinishReason.ABORT))
            self._end(sequence, FinishReason.ABORT)

    def stop(self, message: StopHit) -> None:
        """The detokenizer has ended a sequence at a stop string: free it, silently."""
        sequence = self._table.get(message.seq_id)
        if sequence is not None:
            self._end(sequence, FinishReason.STOP)

    def reset_cache(self) -> int:
        """Forget all cached blocks; returns how many became free."""
        in_flight = (sequence for step, _ in self._in_flight for sequence in step.sequences)
        return self.kv.reset([*self.running.sequences, *in_flight])

    def gateway_is(self, incarnation: int) -> None:
        """The supervisor names the living gateway (0: none); nobody waits for what earlier ones asked."""
        dead_before = self._gateways.dead_up_to
        self._gateways.directory_says(incarnation)
        self._drop_orphans(dead_before)

    # --- one step ---------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """Plan the next step. None while enough are in flight, or when there is nothing to do."""
        step = self._plan() if len(self._in_flight) < self._max_in_flight else None
        self._explain_waits()
        return step

    def submit(self, step: Step) -> None:
        """Send a step to the runner."""
        around = self._surroundings()
        self._runner.send(step.plan())
        step.submitted_ns = time.monotonic_ns()
        self._in_flight.append((step, around))

    def apply(self, result: StepResult) -> None:
        """Take a step's result: advance its sequences, publish their tokens, let go of those that ended.

        Raises RuntimeError for a result that is not of the step in flight: the two processes disagree.
        """
        received_ns = time.monotonic_ns()
        step, around = self._take_step(result)
        if result.prompt_logprobs:
            self._pass_prompt_logprobs(step, result)
        tokens = self._advance(step, result)
        if tokens.seq_ids:
            self._news.append(tokens)
        self.flush()
        self._journal.append(step.record(around, result, received_ns, time.monotonic_ns()))
        self._let_go(step)
        self._cost.learn(step.prefill_tokens, step.decode_tokens, result.sampled_ns - result.exec_start_ns)
        self.last_step_id = step.step_id
        self.last_step_ns = self.pending_since_ns = received_ns

    def flush(self) -> None:
        """Send the detokenizer what there is for it, as one multipart message."""
        if self._news:
            self._detokenizer.send_many(self._news)
            self._news = []

    # --- inside a step ----------------------------------------------------------------------------------

    def _plan(self) -> Step | None:
        planned_ns = time.monotonic_ns()
        step = self._planner.plan()
        self._held_up_by = step.held_up_by
        self._tell_moves(step, planned_ns)
        if not step.sequences:
            if not self._in_flight:
                self._come_to_rest()
            return None
        step.step_id = self.last_step_id + len(self._in_flight) + 1
        step.planned_ns = planned_ns
        step.predicted_ns = self._cost.predict_ns(step.prefill_tokens, step.decode_tokens)
        step.after_idle, self._idle = self._idle, False
        return step

    def _tell_moves(self, step: Step, at_ns: int) -> None:
        for sequence, lost_tokens in step.preempted:
            self._journal.append(SequencePreempted(sequence.seq_id, at_ns, lost_tokens))
        for sequence in step.admitted:
            cached, attempt = sequence.computed, sequence.preemptions
            self._journal.append(SequenceAdmitted(sequence.seq_id, at_ns, cached, attempt))
            if not attempt:
                self._news.append(sequence.start_message())

    def _explain_waits(self) -> None:
        now_ns = time.monotonic_ns()
        for sequence, reason in self.queue.explain(self._held_up_by, self.running.free_slots):
            self._journal.append(WaitChanged(sequence.seq_id, now_ns, reason))

    def _surroundings(self) -> Surroundings:
        pool, head = self.kv.pool, self.queue.head
        counted = (pool.evicted, self.kv.queried_tokens, self.kv.hit_tokens)
        evicted, queried, hit = (now - before for now, before in zip(counted, self._counted, strict=True))
        self._counted = counted
        return Surroundings(
            blocks_free=pool.num_free,
            blocks_active=pool.num_active,
            blocks_cached=pool.num_cached,
            evicted_blocks=evicted,
            queried_tokens=queried,
            hit_tokens=hit,
            waiting=len(self.queue),
            head_seq_id=head.seq_id if head else -1,
            head_reason=(head.wait_reason or "") if head else "",
        )

    def _take_step(self, result: StepResult) -> tuple[Step, Surroundings]:
        if not self._in_flight or self._in_flight[0][0].step_id != result.step_id:
            raise RuntimeError(f"the runner sent a result of step {result.step_id}, which is not the oldest in flight")
        return self._in_flight.popleft()

    def _advance(self, step: Step, result: StepResult) -> StepTokens:
        """Count the rows as computed, and take their tokens; returns those to be published."""
        tokens = StepTokens(result.step_id, result.sampled_ns, [], [], [])
        logprobs = result.logprobs
        rows = zip(step.sequences, step.num_tokens, step.attempts, result.sampled, strict=True)
        for row, (sequence, count, attempt, token) in enumerate(rows):
            if attempt == sequence.preemptions:  # otherwise what the row computed has been given away since
                sequence.computed += count
                self.kv.commit(sequence)
            if token >= 0 and self._take_token(sequence, token, tokens) and row in logprobs:
                tokens.logprobs[len(tokens.seq_ids) - 1] = logprobs[row]
        return tokens

    def _take_token(self, sequence: Sequence, token: int, tokens: StepTokens) -> bool:
        """True when the token is published, last in `tokens`; False when it came after the end."""
        sequence.tokens.append(token)
        sequence.pending -= 1
        if sequence.finish_reason is not None:
            return False
        reason = sequence.finish_after(token)
        tokens.seq_ids.append(sequence.seq_id)
        tokens.token_ids.append(token)
        tokens.finish.append("" if reason is None else reason.value)
        if reason is not None:
            self._end(sequence, reason)
        return True

    def _pass_prompt_logprobs(self, step: Step, result: StepResult) -> None:
        """Each position once: after a preemption the runner computes them again."""
        for row, items in result.prompt_logprobs.items():
            sequence, first = step.sequences[row], step.starts[row] + 1
            new = items[sequence.prompt_logprobs_given - first :] if first <= sequence.prompt_logprobs_given else []
            if new and sequence.finish_reason is None:
                self._news.append(PromptLogprobs(sequence.seq_id, sequence.prompt_logprobs_given, new))
                sequence.prompt_logprobs_given += len(new)

    def _let_go(self, step: Step) -> None:
        for sequence in step.sequences:
            sequence.rows_in_flight -= 1
            if sequence.finish_reason is not None and not sequence.rows_in_flight:
                self._release(sequence, sequence.finish_reason)

    # --- ends -------------------------------------------------------------------------------------------

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take a sequence out. While it rides in a step, the runner writes into its blocks: they are kept."""
        self._table.remove(sequence)
        sequence.finish_reason = reason
        if sequence.slot == NO_SLOT:
            self.queue.remove(sequence)
        else:
            self.running.leave(sequence)
        if not sequence.rows_in_flight:
            self._release(sequence, reason)

    def _release(self, sequence: Sequence, reason: FinishReason) -> None:
        self.kv.release(sequence)
        self.running.give_back_slot(sequence)
        self._journal.append(sequence.ended_record(time.monotonic_ns(), reason))

    def _accepts(self, gateway: int) -> bool:
        dead_before = self._gateways.dead_up_to
        accepted = self._gateways.accepts(gateway)
        self._drop_orphans(dead_before)
        return accepted

    def _drop_orphans(self, dead_before: int) -> None:
        if self._gateways.dead_up_to == dead_before:
            return
        for sequence in self._table.of_gateways_up_to(self._gateways.dead_up_to):
            self._end(sequence, FinishReason.ABORT)

    def _come_to_rest(self) -> None:
        """Nothing can run. Then nothing may be waiting, and no block may be in use."""
        if not self._table:
            self.pending_since_ns = 0
        if not self._idle:
            self._idle = True
            self._check_books()

    def _check_books(self) -> None:
        problem = self.kv.pool.problem(idle=True)
        if problem or self._table:
            self._log.error("the scheduler's books are wrong", problem=problem, cannot_run=len(self._table))

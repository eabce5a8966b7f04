"""A scheduler without processes: factories, a simulated runner that checks its KV, and what came out.

The simulated model's next token is a hash of all token ids before it (and of the slot's seed). Each KV cell
holds the token written there and the hash up to it, and each row checks every cell that it attends to, so
that wrong sharing, eviction or reuse of a block shows at once, or as an answer that differs from `answer_alone`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine.messages import (
    Abort,
    DataMessage,
    Enqueue,
    Refused,
    SamplingParams,
    SequenceEnd,
    SequenceSpec,
    SequenceStart,
    StepPlan,
    StepResult,
    StepTokens,
    StopHit,
)
from engine.scheduler.limits import Limits
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.step import Step
from telemetry.events import FinishReason, Record, SequenceEnded, StepRecord

VOCABULARY = 50
EOS = 7
STEP_NS = 1_000_000


def make_limits(**changes: Any) -> Limits:
    numbers: dict[str, Any] = {
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 32,
        "eos_token_ids": (EOS,),
        "prefix_cache": True,
    } | changes
    pool_tokens = numbers["num_blocks"] * numbers["block_size"]
    return Limits(**{"longest_sequence": pool_tokens} | numbers)


def make_enqueue(
    prompt: Iterable[int] | list[list[int]] = (1, 2, 3),
    *,
    request_id: str = "q",
    n: int = 1,
    seed: int | None = 0,
    gateway: int = 1,
    max_tokens: int | None = 5,
    ignore_eos: bool = True,
    priority: int = 0,
    cache_salt: str = "",
    **params: Any,
) -> Enqueue:
    prompt = list(prompt)
    prompts = prompt if prompt and isinstance(prompt[0], list) else [prompt]
    specs = [
        SequenceSpec(p * n + k, p, None if seed is None else seed + k) for p in range(len(prompts)) for k in range(n)
    ]
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, **params)
    return Enqueue(request_id, gateway, prompts, specs, sampling, priority, cache_salt)


def answer_alone(prompt: list[int], seed: int, params: SamplingParams, longest: int) -> tuple[list[int], str]:
    """What the simulated model answers when nothing else runs: token ids and finish reason."""
    state = 0
    for token in prompt:
        state = hash((state, token))
    room = longest - len(prompt)
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    answer: list[int] = []
    while True:
        answer.append(hash((state, seed)) % VOCABULARY)
        if answer[-1] in stops:
            return answer, "stop"
        if len(answer) >= limit:
            return answer, "length"
        state = hash((state, answer[-1]))


class SimulatedRunner:
    """Executes plans on a pool of cells, and trusts nothing."""

    def __init__(self, limits: Limits) -> None:
        self._block_size = limits.block_size
        self._max_num_seqs = limits.max_num_seqs
        self._budget = limits.max_num_batched_tokens
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}  # (block, offset) → token, hash up to it
        self._seeds: dict[int, int] = {}
        self._last: dict[int, int] = {}  # slot → token sampled there last
        self.tables: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        assert 0 < sum(plan.num_tokens) <= self._budget
        assert sum(plan.num_tokens) == len(plan.token_ids)
        assert len(set(plan.slots)) == len(plan.slots)
        self._tables_for(plan)
        ids = iter(plan.token_ids)
        rows = zip(plan.slots, plan.starts, plan.num_tokens, plan.samples, strict=True)
        sampled = [self._row(slot, start, [next(ids) for _ in range(n)], s) for slot, start, n, s in rows]
        at = plan.step_id * STEP_NS
        return StepResult(plan.step_id, sampled, at, at + STEP_NS // 2, at + STEP_NS, idle_ns=100)

    def _tables_for(self, plan: StepPlan) -> None:
        for start in plan.starting:
            assert 0 <= start.slot < self._max_num_seqs
            self.tables[start.slot] = []
            self._last.pop(start.slot, None)
            self._seeds[start.slot] = start.seed
        for slot, blocks in zip(plan.slots, plan.new_blocks, strict=True):
            self.tables[slot] += blocks

    def _row(self, slot: int, start: int, tokens: list[int], samples: bool) -> int:
        state = self._checked_hash(slot, start)
        for position, token in enumerate(tokens, start):
            token = self._last[slot] if token == -1 else token
            state = hash((state, token))
            self._cells[self._cell(slot, position)] = (token, state)
        if not samples:
            return -1
        self._last[slot] = hash((state, self._seeds[slot])) % VOCABULARY
        return self._last[slot]

    def _checked_hash(self, slot: int, length: int) -> int:
        state = 0
        for position in range(length):
            token, held = self._cells[self._cell(slot, position)]
            state = hash((state, token))
            assert held == state, f"slot {slot} attends to a foreign cell at position {position}"
        return state

    def _cell(self, slot: int, position: int) -> tuple[int, int]:
        return self.tables[slot][position // self._block_size], position % self._block_size


class Sent:
    """Stands for an outbox, a journal or a log: keeps what it was given."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def send(self, message: DataMessage) -> None:
        self.items.append(message)

    def send_many(self, messages: Iterable[DataMessage]) -> None:
        self.items.extend(messages)

    def append(self, record: Record) -> None:
        self.items.append(record)

    def error(self, event: str, **fields: Any) -> None:
        self.items.append((event, fields))

    def of(self, kind: type) -> list[Any]:
        return [item for item in self.items if isinstance(item, kind)]


class Answer:
    """What the detokenizer got of one sequence."""

    def __init__(self, start: SequenceStart | None) -> None:
        self.start = start
        self.token_ids: list[int] = []
        self.finish = ""


class Simulation:
    """A scheduler, a simulated runner, and everything that was said."""

    def __init__(self, limits: Limits | None = None, **changes: Any) -> None:
        self.limits = limits or make_limits(**changes)
        self.runner = SimulatedRunner(self.limits)
        self.journal, self.log = Sent(), Sent()
        self._plans, self._news = Sent(), Sent()
        self.scheduler = Scheduler(
            self.limits, journal=self.journal, runner=self._plans, detokenizer=self._news, log=self.log
        )
        self.answers: dict[int, Answer] = {}
        self.refused: list[Refused] = []
        self._taken = 0

    @property
    def plan(self) -> StepPlan | None:
        """The oldest plan in flight."""
        return self._plans.items[0] if self._plans.items else None

    @property
    def pool(self) -> Any:
        return self.scheduler.kv.pool

    def enqueue(self, *prompt: Any, **how: Any) -> Enqueue:
        message = make_enqueue(*prompt, **how)
        self.scheduler.enqueue(message)
        return message

    def abort(self, request_id: str = "q", gateway: int = 1) -> None:
        self.scheduler.abort(Abort(request_id, gateway))

    def stop_hit(self, seq_id: int) -> None:
        self.scheduler.stop(StopHit(seq_id))

    def begin(self) -> StepPlan | None:
        """As the stage does at the end of a turn: plan and send, as long as more may be in flight."""
        while (step := self.scheduler.schedule()) is not None:
            self._check_writes(step)
            self.scheduler.submit(step)
            assert len(self._plans.items) <= self.limits.max_in_flight
        self.scheduler.flush()
        self._take_news()
        return self.plan

    def end(self) -> None:
        """The runner's result comes back."""
        plan = self._plans.items.pop(0)
        self.scheduler.apply(self.runner.execute(plan))
        self._take_news()

    def step(self) -> StepPlan | None:
        """One whole step; the plan that ran, None when there was nothing to do."""
        plan = self.begin()
        if plan is not None:
            self.end()
        return plan

    def run(self, most_steps: int = 5000) -> int:
        """Step until nothing is left; returns the number of steps."""
        for steps in range(most_steps):
            if self.step() is None:
                return steps
        raise AssertionError(f"still running after {most_steps} steps")

    def texts(self) -> list[list[int]]:
        return [self.answers[seq_id].token_ids for seq_id in sorted(self.answers)]

    def steps(self) -> list[StepRecord]:
        return self.journal.of(StepRecord)

    def check_idle(self) -> None:
        """Nothing left over, and every sequence that was queued ended once."""
        assert self.pool.problem(idle=True) == ""
        assert len(self.scheduler.running) == len(self.scheduler.queue) == 0
        assert self.scheduler.running.free_slots == self.limits.max_num_seqs
        assert set(self.scheduler.queue.counts.values()) == {0}
        assert self.scheduler.pending_since_ns == 0
        assert self.log.items == []
        ends = [record.seq_id for record in self.journal.of(SequenceEnded)]
        assert len(ends) == len(set(ends))

    def _check_writes(self, step: Step) -> None:
        size = self.limits.block_size
        for sequence, start, n in zip(step.sequences, step.starts, step.num_tokens, strict=True):
            assert all(self.pool._references[block] for block in sequence.blocks), "a block is used that is not held"
            written = sequence.blocks[start // size : (start + n - 1) // size + 1]
            assert all(self.pool._references[block] == 1 for block in written), "a shared block is written"
            assert not any(self.pool._retained[block] for block in written), "a block in the cache is written"

    def _take_news(self) -> None:
        items = self._news.items
        for message in items[self._taken :]:
            self._take(message)
        self._taken = len(items)

    def _take(self, message: DataMessage) -> None:
        match message:
            case SequenceStart():
                assert message.seq_id not in self.answers
                self.answers[message.seq_id] = Answer(message)
            case StepTokens():
                self._take_tokens(message.seq_ids, message.token_ids, message.finish)
            case SequenceEnd():
                answer = self.answers.setdefault(message.seq_id, Answer(None))
                assert answer.finish == "", "ended twice"
                answer.finish = message.finish_reason.value
            case Refused():
                self.refused.append(message)

    def _take_tokens(self, seq_ids: Sequence[int], token_ids: Sequence[int], finish: Sequence[str]) -> None:
        for seq_id, token, end in zip(seq_ids, token_ids, finish, strict=True):
            answer = self.answers[seq_id]
            assert answer.finish == "", "a token after the end"
            answer.token_ids.append(token)
            answer.finish = end


def ended(simulation: Simulation) -> dict[int, FinishReason]:
    """How each sequence ended, by the journal."""
    return {record.seq_id: record.finish_reason for record in simulation.journal.of(SequenceEnded)}

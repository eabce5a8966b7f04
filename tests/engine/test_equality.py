"""Equal ids, whatever runs beside, and however the work is cut, cached, planned and preempted.

Scheduler and runner in one process, on tiny random models in float32, against transformers' own greedy answers:
{family} × {1, 16 at once} × {prefix cache on, off} × {budget 64, 2048} × {overlap on, off} × {pool large, small}.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from engine.config import Config
from engine.messages import DataMessage, Enqueue, SamplingParams, SequenceSpec, StepPlan, StepTokens
from engine.model_shape import ModelShape
from engine.runner.model_runner import ModelRunner
from engine.scheduler.limits import Limits
from engine.scheduler.scheduler import Scheduler
from telemetry.events import Record, SequencePreempted
from tests.model_zoo import FALLBACK_FAMILIES, FAMILIES, VOCAB_SIZE, load_reference, make_model_folder

OUTPUT_TOKENS = 24
BLOCK_SIZE = 4
NEAR_TIE = 1e-3
torch.set_num_threads(1)
LENGTHS = (1, 3, 4, 5, 8, 12, 13, 17, 24, 31, 40, 52, 64, 65, 90, 120)


class Settings(NamedTuple):
    """One point of the matrix."""

    at_once: int
    prefix_cache: str
    budget: int
    overlap: str
    pool: str


VALUES = ((1, 16), ("on", "off"), (64, 2048), ("on", "off"), ("large", "small"))
MATRIX = [Settings(*point) for point in product(*VALUES)]


def in_every_run(settings: Settings) -> bool:
    """Eight of the 32 points, in which every pair of values of every two settings occurs; the others run in the long
    tests. (An orthogonal array of strength 2: the last two settings follow from the first three.)
    """
    a, b, c, d, e = (values.index(value) for values, value in zip(VALUES, settings, strict=True))
    return d == a ^ b and e == a ^ c


def points() -> list[Any]:
    """The matrix as parameters of a test."""
    return [
        pytest.param(point, id="-".join(map(str, point)), marks=() if in_every_run(point) else pytest.mark.long)
        for point in MATRIX
    ]


def test_every_pair_of_values_is_in_every_run() -> None:
    quick = [point for point in MATRIX if in_every_run(point)]
    for i, j in combinations(range(len(VALUES)), 2):
        assert {(point[i], point[j]) for point in quick} == set(product(VALUES[i], VALUES[j]))


class Collector:
    """Stands for everything that the scheduler talks to, and keeps what matters here."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self.tokens: dict[int, list[int]] = {}
        self.preemptions = 0

    def send(self, message: DataMessage) -> None:
        assert isinstance(message, StepPlan)
        self.plans.append(message)

    def send_many(self, messages: Iterable[DataMessage]) -> None:
        for message in messages:
            if isinstance(message, StepTokens):
                for seq_id, token in zip(message.seq_ids, message.token_ids, strict=True):
                    self.tokens.setdefault(seq_id, []).append(token)

    def append(self, record: Record) -> None:
        self.preemptions += isinstance(record, SequencePreempted)

    def error(self, event: str, **fields: Any) -> None:
        raise AssertionError((event, fields))


def make_prompts() -> list[list[int]]:
    """Sixteen, many of which begin alike."""
    chooser = random.Random(5)
    common = [chooser.randrange(VOCAB_SIZE) for _ in range(128)]
    prompts = []
    for i, length in enumerate(LENGTHS):
        own = [chooser.randrange(VOCAB_SIZE) for _ in range(length)]
        prompts.append((common[: length // 2] + own)[:length] if i % 3 else own)
    return prompts


PROMPTS = make_prompts()


class Reference(NamedTuple):
    """A family's model as transformers computes it."""

    folder: Path
    model: Any
    answers: list[list[int]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory):
    """Reference of a family, made when it is asked for first."""

    @cache
    def get(family: str) -> Reference:
        folder = make_model_folder(family, tmp_path_factory.mktemp(family))
        model = load_reference(folder)
        model.generation_config.eos_token_id = None
        return Reference(folder, model, [greedy(model, prompt) for prompt in PROMPTS])

    return get


@torch.inference_mode()
def greedy(model: Any, prompt: list[int]) -> list[int]:
    """transformers' own answer."""
    ids = torch.tensor([prompt])
    answer = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=OUTPUT_TOKENS, pad_token_id=0
    )
    return answer[0, len(prompt) :].tolist()


def make_config(settings: Settings) -> Config:
    """A small pool has room for the longest sequence and little more."""
    longest = -(-(max(LENGTHS) + OUTPUT_TOKENS) // BLOCK_SIZE)
    return Config(
        dtype="float32",
        device="cpu",
        block_size=BLOCK_SIZE,
        kv_blocks=longest + 4 if settings.pool == "small" else 1024,
        max_num_seqs=16,
        max_num_batched_tokens=settings.budget,
        prefix_cache=settings.prefix_cache,
        overlap=settings.overlap,
    )


def answer(folder: Path, settings: Settings) -> tuple[list[list[int]], int]:
    """Ids of all prompts, `at_once` of them at a time, and how often somebody was preempted."""
    config = make_config(settings)
    runner = ModelRunner(folder, config)
    shape = ModelShape.from_folder(folder)
    seen = Collector()
    scheduler = Scheduler(Limits.of(shape, config), journal=seen, runner=seen, detokenizer=seen, log=seen)
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0, ignore_eos=True)
    for first in range(0, len(PROMPTS), settings.at_once):
        for number, prompt in enumerate(PROMPTS[first : first + settings.at_once], first):
            scheduler.enqueue(Enqueue(f"q{number}", 1, [prompt], [SequenceSpec(0, 0, 0)], params))
        run_dry(scheduler, runner, seen)
    assert scheduler.kv.pool.problem(idle=True) == ""
    return [seen.tokens[seq_id] for seq_id in sorted(seen.tokens)], seen.preemptions


def run_dry(scheduler: Scheduler, runner: ModelRunner, seen: Collector) -> None:
    """Until nothing is left to do."""
    while True:
        while (step := scheduler.schedule()) is not None:
            scheduler.submit(step)
        scheduler.flush()
        if not seen.plans:
            return
        scheduler.apply(runner.execute(seen.plans.pop(0)))


def assert_equal_ids(reference: Reference, answers: list[list[int]]) -> None:
    """A difference is allowed only where the reference's two best logits are within 1e-3."""
    for prompt, got, expected in zip(PROMPTS, answers, reference.answers, strict=True):
        if got == expected:
            continue
        at = next(i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if a != b)
        with torch.inference_mode():
            best = reference.model(torch.tensor([prompt + expected[:at]])).logits[0, -1].topk(2).values
        assert best[0] - best[1] < NEAR_TIE, f"prompt of {len(prompt)}, position {at}: {got[at]}, not {expected[at]}"


@pytest.mark.parametrize("settings", points())
@pytest.mark.parametrize("family", FAMILIES + FALLBACK_FAMILIES)
def test_ids_equal_transformers(reference, family: str, settings: Settings) -> None:
    known = reference(family)
    answers, preemptions = answer(known.folder, settings)
    assert_equal_ids(known, answers)
    assert bool(preemptions) == (settings.pool == "small" and settings.at_once > 1)

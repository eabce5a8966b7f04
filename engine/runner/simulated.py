"""A simulated device: takes the time that a real one would take, and draws ids without a model.

For measuring everything around the model (`--device simulated`): what the host costs per step, how much of it
overlapped planning hides, how the other stages hold up at thousands of running sequences.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from engine.config import Config, SimulatedStep
from engine.messages import StepPlan, StepResult
from engine.model_shape import ModelShape
from engine.runner.sampling.randomness import uniforms


class SimulatedRunner:
    """Executes step plans by sleeping.

    The id at a position depends on the sequence's seed and the position alone, so that answers are the same
    however they are batched, cut into chunks or preempted. There are no logits: whatever a request says of them
    (temperature, biases, penalties, log probabilities) has no effect here.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        """Read how many ids the model in `folder` has; nothing else of it is needed."""
        shape = ModelShape.from_folder(folder)
        self._vocab_size = shape.vocab_size
        self._num_blocks = shape.num_kv_blocks(config)
        self._dtype = config.dtype
        self._timing = SimulatedStep.parse(config.simulated_step)
        self._seeds = np.zeros(config.max_num_seqs, np.uint64)
        self._last_sampled_ns = 0

    def facts(self) -> dict[str, str]:
        """What the supervisor wants to know: pool size, device, number format."""
        return {"num_blocks": str(self._num_blocks), "device": "simulated", "dtype": self._dtype}

    def compute(self) -> None:
        """Nothing is."""

    def warm_up(self) -> None:
        """There is nothing to set up."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Sleep as long as the step would take, and draw an id for each row that samples."""
        exec_start_ns = time.monotonic_ns()
        idle_ns = exec_start_ns - self._last_sampled_ns if self._last_sampled_ns else 0
        for start in plan.starting:
            self._seeds[start.slot] = start.seed
        sampled = self._draw(plan)
        decodes = plan.num_tokens.count(1)
        ends_ns = exec_start_ns + self._timing.duration_ns(sum(plan.num_tokens) - decodes, decodes)
        time.sleep(max(0, ends_ns - time.monotonic_ns()) / 1e9)
        self._last_sampled_ns = time.monotonic_ns()
        return StepResult(plan.step_id, sampled, exec_start_ns, self._last_sampled_ns, self._last_sampled_ns, idle_ns)

    def _draw(self, plan: StepPlan) -> list[int]:
        positions = np.array(plan.starts) + np.array(plan.num_tokens)
        ids = (uniforms(self._seeds[plan.slots], positions) * self._vocab_size).astype(np.int64)
        drawn: list[int] = np.where(plan.samples, ids, -1).tolist()
        return drawn

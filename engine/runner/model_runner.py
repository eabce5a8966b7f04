"""The runner without its process: a model, its KV cache, and the execution of step plans."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import numpy as np
import structlog
import torch
from torch import Tensor

from engine.config import Config
from engine.messages import SamplingParams, SlotStart, StepPlan, StepResult, TokenLogprobs
from engine.model_shape import ModelShape
from engine.process import CannotStartError
from engine.runner.attention.paged import PagedAttention
from engine.runner.device_speed import device_speed
from engine.runner.kv_cache import KVCache
from engine.runner.memory import available_bytes, check_memory
from engine.runner.model_work import model_work
from engine.runner.models import load_model
from engine.runner.sampling.next_tokens import choose_tokens
from engine.runner.sampling.prompt_scores import score_prompts
from engine.runner.slots import Ints, SlotTable
from engine.runner.step_batch import StepBatch, prepare
from engine.runner.weights import Checkpoint
from telemetry.events import Compute

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_WARM_UP_TOKENS = 16

log = structlog.get_logger()


class ModelRunner:
    """Executes step plans. Decides nothing: which rows, blocks and tokens is all in the plan."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Load the model in `folder` and reserve the KV pool. Raises CannotStartError."""
        shape = _read_shape(folder)
        self._config = config
        self._dtype = _DTYPES[config.dtype]
        self._device = _device(config)
        self._num_blocks = shape.num_kv_blocks(config)
        self._longest = shape.longest_sequence(config)
        self._vocab_size = shape.vocab_size
        checkpoint = Checkpoint(folder, self._dtype, self._device)
        pool_bytes = self._num_blocks * config.block_size * shape.kv_bytes_per_token(config.dtype)
        check_memory(checkpoint.num_bytes(), pool_bytes, available_bytes(self._device), config)
        self._model = load_model(folder, shape, checkpoint, self._longest)
        self._work = model_work(checkpoint.shapes(), shape, self._model, shape.expert_share, self._device)
        self._cache = KVCache(shape, self._num_blocks, config.block_size, self._dtype, self._device)
        self._slots = SlotTable(config.max_num_seqs, -(-self._longest // config.block_size), config.block_size)
        self._last_sampled_ns = 0

    def facts(self) -> dict[str, str]:
        """What the supervisor wants to know: pool size, device, number format."""
        return {"num_blocks": str(self._num_blocks), "device": str(self._device), "dtype": self._config.dtype}

    def compute(self) -> Compute | None:
        """What the model's steps cost and what the device reaches; measures the device unless that is known."""
        try:
            speed = device_speed(self._config.cache_path, self._device, self._dtype)
        except OSError as e:
            log.warning("the device's speed cannot be kept: no utilisation is told", error=str(e))
            return None
        if self._work is None:
            log.warning("the weights of this architecture cannot be told apart: no utilisation is told")
        return Compute(self._work, speed)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step: forward pass over all tokens, then a token for each row that samples.

        ``idle_ns`` is the whole gap since the end of the last step. Whether work was pending meanwhile is not
        known here; the scheduler counts the gap only where it was.

        A token id of -1 in the plan stands for the token last sampled in that slot.
        """
        exec_start_ns = time.monotonic_ns()
        idle_ns = exec_start_ns - self._last_sampled_ns if self._last_sampled_ns else 0
        batch = prepare(plan, self._slots)
        sampling = np.flatnonzero(plan.samples)
        hidden = self._forward(batch)
        logits = self._logits(hidden, (batch.first_token + batch.num_tokens - 1)[sampling])
        forward_end_ns = time.monotonic_ns()
        sampled, logprobs = self._sample(batch, sampling, logits)
        prompt_logprobs = score_prompts(batch, self._slots, partial(self._logits, hidden), self._vocab_size)
        self._last_sampled_ns = time.monotonic_ns()
        return StepResult(
            step_id=plan.step_id,
            sampled=sampled,
            exec_start_ns=exec_start_ns,
            forward_end_ns=forward_end_ns,
            sampled_ns=self._last_sampled_ns,
            idle_ns=idle_ns,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    def warm_up(self) -> None:
        """Run a prefill and a decode step, so that the first request does not wait for kernels to be set up.

        They use slot 0 and the first blocks; whoever gets those writes its own values before reading any.
        """
        num_tokens = min(_WARM_UP_TOKENS, self._longest)
        blocks = list(range(-(-num_tokens // self._config.block_size)))
        start = SlotStart(0, seed=0, num_prompt=num_tokens, params=SamplingParams(temperature=1.0, top_p=0.9))
        self.execute(_one_row_plan([start], 0, blocks, [0] * num_tokens))
        self.execute(_one_row_plan([], num_tokens - 1, [], [-1]))
        self._last_sampled_ns = 0

    def _forward(self, batch: StepBatch) -> Tensor:
        """Hidden states of all tokens of the batch, ``[num_tokens, hidden_size]``."""
        attention = PagedAttention(self._cache, batch, self._slots)
        return self._model.forward(self._to_device(batch.token_ids), self._to_device(batch.positions), attention)

    def _logits(self, hidden: Tensor, tokens: Ints) -> Tensor:
        """Float32 logits ``[len(tokens), vocab_size]`` of what follows `tokens` of the batch."""
        return self._model.logits(hidden[self._to_device(tokens)])

    def _sample(self, batch: StepBatch, sampling: Ints, logits: Tensor) -> tuple[list[int], dict[int, TokenLogprobs]]:
        """One id per row of the batch, -1 for rows that do not sample; log probabilities of rows that want them."""
        sampled = np.full(len(batch.slots), -1)
        if not sampling.size:
            return sampled.tolist(), {}
        sampled[sampling], scores = choose_tokens(
            logits, self._slots, batch.slots[sampling], batch.context_length[sampling]
        )
        return sampled.tolist(), {int(sampling[i]): score for i, score in scores.items()}

    def _to_device(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _one_row_plan(starting: list[SlotStart], at: int, blocks: list[int], token_ids: list[int]) -> StepPlan:
    return StepPlan(
        step_id=-1,
        predicted_ns=0,
        starting=starting,
        slots=[0],
        starts=[at],
        num_tokens=[len(token_ids)],
        samples=[True],
        new_blocks=[blocks],
        token_ids=token_ids,
    )


def _read_shape(folder: Path) -> ModelShape:
    try:
        return ModelShape.from_folder(folder)
    except OSError as e:
        raise CannotStartError(f"cannot read the model's configuration in {folder}: {e.strerror}") from e
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise CannotStartError(f"{folder}: config.json does not describe a known model: {e!r}") from e


def _device(config: Config) -> torch.device:
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise CannotStartError("--device cuda: torch finds no CUDA device here; use --device cpu")
    return torch.device(config.device)

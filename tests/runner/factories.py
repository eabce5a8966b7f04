"""Tiny models, and a driver that plans steps like a scheduler would, one explicit choice at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import Config
from engine.messages import SamplingParams, SlotStart, StepPlan, StepResult
from engine.model_shape import ModelShape
from engine.runner.attention.paged import PagedAttention
from engine.runner.kv_cache import KVCache
from engine.runner.model_runner import ModelRunner
from engine.runner.models import load_model
from engine.runner.slots import SlotTable
from engine.runner.step_batch import prepare
from engine.runner.weights import Checkpoint

VOCAB_SIZE = 320


def llama_config(**overrides) -> LlamaConfig:
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,  # the default makes logits so flat that any two implementations would agree
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return LlamaConfig(**{**sizes, **overrides})


def save_model(folder: Path, *, seed: int = 0, **overrides) -> LlamaForCausalLM:
    """Make a random Llama, save it, and return it as the reference."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(**overrides)).eval()
    model.save_pretrained(folder)
    return model


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(n)] for n in lengths]


def reference_greedy(model, prompt: list[int], max_tokens: int) -> list[int]:
    """What transformers generates, end-of-sequence ignored."""
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return out[0, len(prompt) :].tolist()


class PagedModel:
    """A loaded model without a runner: logits of every token, for any split of rows into steps."""

    BLOCK_SIZE = 3

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.shape = ModelShape.from_folder(folder)
        self.checkpoint = Checkpoint(folder, dtype, torch.device("cpu"))
        self.model = load_model(folder, self.shape, self.checkpoint, self.shape.max_positions)

    @torch.inference_mode()
    def logits(self, rows: list[list[int]], steps: list[list[int]]) -> list[torch.Tensor]:
        """Float32 logits ``[tokens, vocab_size]`` of each row; `steps` has each row's number of tokens per step."""
        blocks_per_row = -(-max(map(len, rows)) // self.BLOCK_SIZE)
        blocks = random.Random(0).sample(range(len(rows) * blocks_per_row), len(rows) * blocks_per_row)
        table = SlotTable(len(rows), blocks_per_row, self.BLOCK_SIZE)
        cache = KVCache(self.shape, len(blocks), self.BLOCK_SIZE, self.checkpoint.dtype, self.checkpoint.device)
        for layer in cache.layers:
            layer.fill_(float("nan"))  # whoever reads what nobody wrote is found out
        done = [0 for _ in rows]
        found: list[list[torch.Tensor]] = [[] for _ in rows]
        for counts in steps:
            here = [i for i, count in enumerate(counts) if count]
            plan = StepPlan(
                step_id=0,
                predicted_ns=0,
                starting=[SlotStart(i, 0, len(rows[i]), SamplingParams()) for i in here if done[i] == 0],
                slots=here,
                starts=[done[i] for i in here],
                num_tokens=[counts[i] for i in here],
                samples=[False for _ in here],
                new_blocks=[[] if done[i] else blocks[i * blocks_per_row :][:blocks_per_row] for i in here],
                token_ids=[t for i in here for t in rows[i][done[i] : done[i] + counts[i]]],
            )
            batch = prepare(plan, table)
            hidden = self.model.forward(
                torch.from_numpy(batch.token_ids),
                torch.from_numpy(batch.positions),
                PagedAttention(cache, batch, table),
            )
            for i, part in zip(here, self.model.logits(hidden).split(plan.num_tokens), strict=True):
                found[i].append(part)
                done[i] += counts[i]
        assert done == [len(row) for row in rows]
        return [torch.cat(parts) for parts in found]


def make_config(**overrides) -> Config:
    settings = {"dtype": "float32", "kv_blocks": 128, "block_size": 4, "max_num_seqs": 8, "device": "cpu"}
    return Config(**{**settings, **overrides})


def make_runner(folder: Path, **overrides) -> ModelRunner:
    return ModelRunner(folder, make_config(**overrides))


@dataclass
class Sequence:
    slot: int
    ids: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    started: bool = False
    sampled_here: bool = False  # in its present slot, whose last token then is its last

    @property
    def output(self) -> list[int]:
        return self.ids[self.num_prompt :]

    def start(self) -> SlotStart:
        history = self.params.needs_history or self.params.prompt_logprobs is not None
        known = list(self.ids) if history else []
        return SlotStart(self.slot, self.seed, self.num_prompt, self.params, known, self.stop_ids)


class Driver:
    """Plans steps for a runner. Block ids are handed out in the order of `free_blocks`."""

    def __init__(self, runner: ModelRunner, block_size: int, free_blocks: list[int]) -> None:
        self.runner = runner
        self.block_size = block_size
        self.free_blocks = list(free_blocks)
        self.next_slot = 0
        self.step_id = 0
        self.result: StepResult | None = None  # of the last step

    def add(self, prompt: list[int], *, seed: int = 0, stop_ids: tuple[int, ...] = (), **params) -> Sequence:
        sampling = SamplingParams(**{"temperature": 0.0, **params})
        sequence = Sequence(self.next_slot, list(prompt), len(prompt), sampling, seed, stop_ids)
        self.next_slot += 1
        return sequence

    def preempt(self, sequence: Sequence, slot: int) -> None:
        """Take its blocks away; it starts again in `slot`, with all it knows."""
        self.free_blocks += sequence.blocks
        sequence.slot, sequence.blocks, sequence.computed = slot, [], 0
        sequence.started = sequence.sampled_here = False

    def share_prefix(self, source: Sequence, target: Sequence, num_blocks: int) -> None:
        target.blocks = source.blocks[:num_blocks]
        target.computed = num_blocks * self.block_size

    def step(self, rows: list[tuple[Sequence, int]], *, by_reference: bool = False) -> list[int]:
        """One step that computes the given number of tokens per sequence; grows `ids` by what was sampled."""
        starting = [s.start() for s, _ in rows if not s.started]
        new_blocks = [self._grow(s, n) for s, n in rows]
        ids = [
            -1 if by_reference and s.sampled_here and at == len(s.ids) - 1 else s.ids[at]
            for s, n in rows
            for at in range(s.computed, s.computed + n)
        ]
        plan = StepPlan(
            step_id=self.step_id,
            predicted_ns=0,
            starting=starting,
            slots=[s.slot for s, _ in rows],
            starts=[s.computed for s, _ in rows],
            num_tokens=[n for _, n in rows],
            samples=[s.computed + n == len(s.ids) for s, n in rows],
            new_blocks=new_blocks,
            token_ids=ids,
        )
        self.step_id += 1
        self.result = self.runner.execute(plan)
        sampled = self.result.sampled
        for (s, n), token in zip(rows, sampled, strict=True):
            s.computed += n
            s.started = True
            if token >= 0:
                s.ids.append(token)
                s.sampled_here = True
        return sampled

    def generate(self, sequences: list[Sequence], max_tokens: int, chunk: int, **how) -> list[list[int]]:
        """Run all of them together to the end, prompts in chunks; sequence i joins at step i."""
        turn = 0
        while any(len(s.output) < max_tokens for s in sequences):
            here = [s for s in sequences[: turn + 1] if len(s.output) < max_tokens]
            self.step([(s, min(chunk, len(s.ids) - s.computed)) for s in here], **how)
            turn += 1
        return [s.output for s in sequences]

    def _grow(self, sequence: Sequence, num_tokens: int) -> list[int]:
        num_known = len(sequence.blocks) if sequence.started else 0
        needed = -(-(sequence.computed + num_tokens) // self.block_size)
        while len(sequence.blocks) < needed:
            sequence.blocks.append(self.free_blocks.pop(0))
        return sequence.blocks[num_known:]

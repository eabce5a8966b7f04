"""What bounds the scheduler, taken from the configuration and the model's shape."""

from __future__ import annotations

import msgspec

from engine.config import Config
from engine.model_shape import ModelShape


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that stay the same for the life of the process."""

    num_blocks: int  # KV blocks in the pool
    block_size: int  # tokens per block
    max_num_seqs: int  # sequences running at once
    max_num_batched_tokens: int  # tokens computed per step
    longest_sequence: int  # prompt and answer, by context and by pool
    eos_token_ids: tuple[int, ...]
    prefix_cache: bool
    max_in_flight: int = 1  # steps planned before the first one's result is here
    prefill_share: float = 1.0  # of the step's tokens, for prefills beside decodes
    priority_aging_ns: int = 0  # of waiting, that one level of priority is worth

    @classmethod
    def of(cls, shape: ModelShape, config: Config) -> Limits:
        """The limits of one model under one configuration."""
        return cls(
            num_blocks=shape.num_kv_blocks(config),
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            longest_sequence=shape.longest_sequence(config),
            eos_token_ids=shape.eos_token_ids,
            prefix_cache=config.prefix_cache == "on",
            max_in_flight=2 if config.overlap == "on" else 1,
            prefill_share=config.prefill_share,
            priority_aging_ns=int(config.priority_aging * 1e9),
        )

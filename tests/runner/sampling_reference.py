"""Sampling by its definitions, one row at a time: float64, everything sorted, nothing shared with the engine."""

from __future__ import annotations

import math

import numpy as np

from engine.messages import SamplingParams


def adjusted_logits(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: list[int] = (),
    sampled: list[int] = (),
    stop_ids: tuple[int, ...] = (),
) -> np.ndarray:
    """Bias, repetition, frequency, presence, bans."""
    out = [float(x) for x in logits]
    for token, bias in params.logit_bias:
        out[token] += bias
    for token in {*prompt, *sampled}:
        out[token] = (
            out[token] / params.repetition_penalty if out[token] > 0 else out[token] * params.repetition_penalty
        )
    for token in set(sampled):
        out[token] -= params.frequency_penalty * list(sampled).count(token) + params.presence_penalty
    banned = set(stop_ids) if len(sampled) < params.min_tokens else set()
    sequence = [*prompt, *sampled]
    for *beginning, last in params.bad_word_ids:
        if sequence[len(sequence) - len(beginning) :] == beginning:
            banned.add(last)
    banned &= set(range(len(out)))
    if len(banned) < len(out):
        for token in banned:
            out[token] = -math.inf
    return np.array(out)


def kept_tokens(logits: np.ndarray, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """top_k, then top_p over what is left, then min_p: sort, cut, sort, cut. `logits` are divided by temperature."""
    order = sorted((i for i in range(len(logits)) if logits[i] > -math.inf), key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    weights = np.exp(np.array([logits[i] for i in order], np.float64) - max(logits))
    probabilities = weights / weights.sum()
    before = np.cumsum(probabilities) - probabilities
    if top_p < 1:
        order = [i for i, mass in zip(order, before, strict=True) if mass < top_p or i == order[0]]
    return {i for i, p in zip(order, probabilities, strict=False) if p >= min_p * probabilities[0]}


def distribution(logits: np.ndarray, params: SamplingParams, **sequence) -> np.ndarray:
    """Probabilities of the next token, ``[vocab_size]``, for a temperature above 0."""
    scaled = adjusted_logits(logits, params, **sequence) / params.temperature
    stay = kept_tokens(scaled, params.top_k, params.top_p, params.min_p)
    weights = np.array([math.exp(x - scaled.max()) if i in stay else 0.0 for i, x in enumerate(scaled)])
    return weights / weights.sum()


def surprise(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """How far `counts` of draws lie from what `probabilities` let expect, in standard deviations: above 3, p < 0.001.

    Pearson's chi-square, made normal as Wilson and Hilferty (1931) do. Rare outcomes count as one; an impossible one
    that was drawn is infinitely surprising.
    """
    if counts[probabilities == 0].any():
        return math.inf
    rare = probabilities * counts.sum() < 5
    observed, expected = (np.append(a[~rare], a[rare].sum()) for a in (counts, probabilities * counts.sum()))
    used = expected > 0
    degrees = max(1, used.sum() - 1)
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    return ((statistic / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees))

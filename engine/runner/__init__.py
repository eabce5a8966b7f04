"""The runner: weights, KV tensors, forward pass and sampling. It computes what the scheduler's plans say.

``python -m engine.runner`` is the process (`stage`); `model_runner` is its core, and works without one.
Nothing of this package may be imported before `threads` has set the environment: torch reads it once.
"""

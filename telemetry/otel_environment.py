"""OpenTelemetry's standard environment variables, where they stand in for settings of ours.

A setting that is given wins. What is not read here (``OTEL_EXPORTER_OTLP_HEADERS``, ``…_TIMEOUT``, ``…_COMPRESSION``,
``…_CERTIFICATE`` and their ``…_TRACES_…`` forms) the exporters read themselves. Names and values: OpenTelemetry
specification, "Environment Variable Specification" and "OpenTelemetry Protocol Exporter".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

import structlog

_RATIOS = {"always_on": 1.0, "always_off": 0.0}
_RATIO_SAMPLER = "traceidratio"

log = structlog.get_logger()


def protocol(environ: Mapping[str, str] = os.environ) -> Literal["grpc", "http/protobuf"] | None:
    """How to reach the endpoint that the variables name; None when they name none, or want nothing exported."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() == "none":
        return None
    if not any(environ.get(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT") for name in ("", "TRACES_")):
        return None
    named = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    return "grpc" if named == "grpc" else "http/protobuf"


def trace_ratio(setting: float, environ: Mapping[str, str] = os.environ) -> float:
    """The share of requests to export: `setting` unless that is 1, its default; then ``OTEL_TRACES_SAMPLER`` decides.

    A caller's flag is followed in any case, as the ``parentbased_…`` samplers do.
    """
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower().removeprefix("parentbased_")
    if setting != 1.0 or not sampler:
        return setting
    if sampler in _RATIOS:
        return _RATIOS[sampler]
    if sampler == _RATIO_SAMPLER:
        return number("OTEL_TRACES_SAMPLER_ARG", 1.0, 0.0, 1.0, environ)
    log.warning("OTEL_TRACES_SAMPLER is not known, and not used", value=sampler)
    return setting


def number(
    name: str, default: float, least: float, most: float = float("inf"), environ: Mapping[str, str] = os.environ
) -> float:
    """A variable that holds a number; `default` where it is not set, or not one between `least` and `most`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if least <= value <= most:
        return value
    log.warning("an environment variable is out of range, and not used", name=name, value=text)
    return default

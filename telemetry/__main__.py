"""``python -m telemetry``: the telemetry process."""

from __future__ import annotations

from engine.process import run_child
from telemetry.collector import main

if __name__ == "__main__":
    run_child(main)

"""For every alert: series that make it fire, and series that come close and must not.

Values are in promtool's notation: ``0+5x60`` begins at 0 and grows by 5 at each of 60 further steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MODEL = 'model="m"'
R0 = 'model="m",replica="r0"'
Series = dict[str, str]


@dataclass(frozen=True)
class Case:
    """At `at`, the `alert` fires for exactly these label sets (none: it does not fire)."""

    alert: str
    name: str
    series: Series
    at: str
    fires: list[str] = field(default_factory=list)
    step: str = "1m"


def latency(metric: str, bound: str, kept: str, everything: str) -> Series:
    """A histogram of which only what matters to its objective is there."""
    return {f'{metric}_bucket{{{R0},le="{bound}"}}': kept, f"{metric}_count{{{R0}}}": everything}


def ttft(kept: str, everything: str) -> Series:
    return latency("gen_ai_server_time_to_first_token_seconds", "1.0", kept, everything)


def itl(kept: str, everything: str) -> Series:
    return latency("vitrine_inter_token_latency_seconds", "0.1", kept, everything)


def ended(**by_type: str) -> Series:
    """Requests by ``error_type``; ``good`` are those without."""
    name = "gen_ai_server_request_duration_seconds_count"
    return {f'{name}{{{R0},error_type="{"" if t == "good" else t}"}}': values for t, values in by_type.items()}


def waiting(**by_reason: str) -> Series:
    return {f'vitrine_requests_waiting{{{R0},reason="{reason}"}}': values for reason, values in by_reason.items()}


def one(name: str, labels: str, values: str) -> Series:
    return {f"{name}{{{labels}}}": values}


BURNS = [
    Case("VitrineTTFTBudgetBurnsFast", "80 % slow for 70 minutes", ttft("0+2x90", "0+10x90"), "70m", [MODEL]),
    Case("VitrineTTFTBudgetBurnsFast", "40 % slow for 7 hours", ttft("0+30x90", "0+50x90"), "7h", [MODEL], "5m"),
    Case("VitrineTTFTBudgetBurnsFast", "20 % slow is no page", ttft("0+8x90", "0+10x90"), "70m"),
    Case("VitrineTTFTBudgetBurnsFast", "all well again for half an hour", ttft("0x60 10+10x60", "0+10x120"), "95m"),
    Case("VitrineTTFTBudgetBurnsFast", "nobody asks", ttft("5x90", "7x90"), "70m"),
    Case("VitrineTTFTBudgetBurnsSlow", "20 % slow for a day", ttft("0+40x100", "0+50x100"), "25h", [MODEL], "15m"),
    Case("VitrineTTFTBudgetBurnsSlow", "6 % slow for three days", ttft("0+94x160", "0+100x160"), "75h", [MODEL], "30m"),
    Case("VitrineTTFTBudgetBurnsSlow", "4 % slow is kept", ttft("0+96x160", "0+100x160"), "75h", [], "30m"),
    Case("VitrineITLBudgetBurnsFast", "80 % slow for 70 minutes", itl("0+2x90", "0+10x90"), "70m", [MODEL]),
    Case("VitrineITLBudgetBurnsFast", "20 % slow is no page", itl("0+8x90", "0+10x90"), "70m"),
    Case("VitrineITLBudgetBurnsSlow", "20 % slow for a day", itl("0+40x100", "0+50x100"), "25h", [MODEL], "15m"),
    Case("VitrineITLBudgetBurnsSlow", "4 % slow is kept", itl("0+96x160", "0+100x160"), "75h", [], "30m"),
    Case(
        "VitrineErrorBudgetBurnsFast",
        "one in five fails",
        ended(good="0+8x90", engine_error="0+2x90"),
        "70m",
        [MODEL],
    ),
    Case(
        "VitrineErrorBudgetBurnsFast",
        "a type that nobody knows is a fault",
        ended(good="0+8x90", other="0+2x90"),
        "70m",
        [MODEL],
    ),
    Case(
        "VitrineErrorBudgetBurnsFast",
        "clients make mistakes and leave",
        ended(good="0+8x90", invalid_value="0+50x90", client_disconnected="0+50x90"),
        "70m",
    ),
    Case(
        "VitrineErrorBudgetBurnsSlow",
        "2 % fail for three days",
        ended(good="0+98x160", rate_limit_exceeded="0+2x160"),
        "75h",
        [MODEL],
        "30m",
    ),
    Case(
        "VitrineErrorBudgetBurnsSlow",
        "one in 200 may fail",
        ended(good="0+199x160", engine_error="0+1x160"),
        "75h",
        [],
        "30m",
    ),
]

ENGINE = [
    Case("VitrineUnreachable", "no answer", one("up", 'job="vitrine",instance="i"', "0x10"), "5m", ['instance="i"']),
    Case("VitrineUnreachable", "it answers", one("up", 'job="vitrine",instance="i"', "1x10"), "5m"),
    Case("VitrineUnreachable", "another job", one("up", 'job="other",instance="i"', "0x10"), "5m"),
    Case("VitrineNoReplicaReady", "none", one("vitrine_replicas", 'model="m",state="ready"', "0x10"), "5m", [MODEL]),
    Case("VitrineNoReplicaReady", "one", one("vitrine_replicas", 'model="m",state="ready"', "1x10"), "5m"),
    Case("VitrineEngineStuck", "40 s", one("vitrine_engine_last_step_age_seconds", R0, "0 40 100 160"), "3m", [R0]),
    Case("VitrineEngineStuck", "20 s", one("vitrine_engine_last_step_age_seconds", R0, "20x10"), "5m"),
    Case("VitrineEngineStuck", "only once", one("vitrine_engine_last_step_age_seconds", R0, "0 40 0 0"), "3m"),
    Case(
        "VitrineKVPoolFull",
        "full, and they wait for it",
        one("vitrine_kv_cache_usage_ratio", R0, "0.99x10") | waiting(kv_blocks="3x10"),
        "8m",
        [R0],
    ),
    Case(
        "VitrineKVPoolFull",
        "full, and nobody waits for it",
        one("vitrine_kv_cache_usage_ratio", R0, "0.99x10") | waiting(kv_blocks="0x10", max_running="9x10"),
        "8m",
    ),
    Case(
        "VitrineKVPoolFull",
        "half full",
        one("vitrine_kv_cache_usage_ratio", R0, "0.5x10") | waiting(kv_blocks="3x10"),
        "8m",
    ),
    Case(
        "VitrinePreemptionStorm",
        "one per request",
        one("vitrine_preemptions_total", R0, "0+60x20") | one("vitrine_requests_total", R0, "0+60x20"),
        "15m",
        [R0],
    ),
    Case(
        "VitrinePreemptionStorm",
        "one in ten requests",
        one("vitrine_preemptions_total", R0, "0+6x20") | one("vitrine_requests_total", R0, "0+60x20"),
        "15m",
    ),
    Case(
        "VitrinePreemptionStorm",
        "one per minute is no storm",
        one("vitrine_preemptions_total", R0, "0+1x20") | one("vitrine_requests_total", R0, "0+1x20"),
        "15m",
    ),
    Case("VitrineQueueGrows", "by five a minute", waiting(max_running="0+3x40", kv_blocks="0+2x40"), "30m", [R0]),
    Case("VitrineQueueGrows", "long, but not growing", waiting(max_running="40x40"), "30m"),
    Case("VitrineQueueGrows", "short", waiting(max_running="0+0.1x40"), "30m"),
    Case(
        "VitrineTelemetryLost",
        "spans that were not delivered",
        one("vitrine_telemetry_dropped_total", 'sink="spans"', "0x5 7x10")
        | one("vitrine_telemetry_dropped_total", 'sink="store"', "0x15"),
        "8m",
        ['sink="spans"'],
    ),
    Case("VitrineTelemetryLost", "long ago", one("vitrine_telemetry_dropped_total", 'sink="spans"', "0 7x40"), "30m"),
    Case("VitrineTelemetryLags", "10 s", one("vitrine_telemetry_lag_seconds", "", "10x10"), "5m", [""]),
    Case("VitrineTelemetryLags", "a tenth", one("vitrine_telemetry_lag_seconds", "", "0.1x10"), "5m"),
    Case(
        "VitrineReplicaFlapping",
        "three failures in half an hour",
        one("vitrine_replica_restarts_total", f'{R0},reason="killed"', "0x5 1x5 2x30")
        | one("vitrine_replica_restarts_total", f'{R0},reason="hang"', "0x10 1x30"),
        "20m",
        [R0],
    ),
    Case(
        "VitrineReplicaFlapping",
        "one failure",
        one("vitrine_replica_restarts_total", f'{R0},reason="killed"', "0x5 1x40"),
        "20m",
    ),
    Case(
        "VitrineReplicaFlapping",
        "three failures long ago",
        one("vitrine_replica_restarts_total", f'{R0},reason="killed"', "0 1 2 3x60"),
        "50m",
    ),
]

CASES = [*BURNS, *ENGINE]

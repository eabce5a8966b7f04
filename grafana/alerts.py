"""Alerts on what the engine does, beside those on the objectives."""

from __future__ import annotations

from grafana.promql import Expr, Queries
from grafana.rules import Alert, Condition

_SHORT, _LONG = Queries("5m"), Queries("30m")
_REPLICA = ("model", "replica")
_WHO = "{{ $labels.model }}, replica {{ $labels.replica }}"

STUCK_AFTER_S = 30
"""As `/health` has it for steps whose time is not predicted to be longer."""


def alerts() -> list[Alert]:
    """All of them."""
    return [_unreachable(), _no_replica(), _stuck(), _flapping(), _kv_full(), _preempting(), _queue(), _lost(), _lag()]


def _unreachable() -> Alert:
    return Alert(
        "VitrineUnreachable",
        ((Condition(Expr('min by (instance) (up{job="vitrine"})', (), ("instance",)), "<", 1),),),
        "1m",
        "page",
        "{{ $labels.instance }} has no metrics",
        "Everything else is blind until it has. If /health answers, only the telemetry process is away: see its log "
        "in logs/. If it does not, start the server (vitrine serve) and read logs/ and crash/ for why it ended.",
        "replicas",
    )


def _no_replica() -> Alert:
    ready = _SHORT.gauge("vitrine_replicas", ("model",), where={"state": '="ready"'})
    return Alert(
        "VitrineNoReplicaReady",
        ((Condition(ready, "<", 1),),),
        "1m",
        "page",
        "{{ $labels.model }}: no replica takes requests",
        "Every request is answered with 503. See the states with vitrine replicas; logs/ and crash/ in the data "
        "folder say why the last one ended.",
        "replicas",
    )


def _stuck() -> Alert:
    age = _SHORT.gauge("vitrine_engine_last_step_age_seconds", _REPLICA, "max")
    return Alert(
        "VitrineEngineStuck",
        ((Condition(age, ">", STUCK_AFTER_S),),),
        "30s",
        "page",
        f"{_WHO}: no step for {{{{ $value | humanizeDuration }}}} with work pending",
        "The runner hangs or a step takes far too long. See its CPU on the stages dashboard and the runner's log; "
        "then restart the replica: end its runner process (vitrine replicas shows it) and the supervisor starts the "
        "replica anew.",
        "engine",
    )


def _flapping() -> Alert:
    restarts = _LONG.increase("vitrine_replica_restarts_total", _REPLICA)
    return Alert(
        "VitrineReplicaFlapping",
        ((Condition(restarts, ">", 2.5),),),
        "0s",
        "page",
        f"{_WHO}: {{{{ $value | humanize }}}} restarts in half an hour",
        "It starts, fails and is started again. crash/ in the data folder has the journals and the reason of each "
        "failure; the reason label on the replicas dashboard says how the process ended (killed: see the kernel's log "
        "for lack of memory).",
        "replicas",
    )


def _kv_full() -> Alert:
    usage = _SHORT.gauge("vitrine_kv_cache_usage_ratio", _REPLICA, "max")
    waiting = _SHORT.gauge("vitrine_requests_waiting", _REPLICA, where={"reason": '="kv_blocks"'})
    return Alert(
        "VitrineKVPoolFull",
        ((Condition(usage, ">", 0.95), Condition(waiting, ">", 0)),),
        "5m",
        "ticket",
        f"{_WHO}: {{{{ $value | humanizePercentage }}}} of the KV pool is in use and sequences wait for blocks",
        "Give the pool more memory (--kv-cache-memory), add a replica, or let fewer sequences run at once "
        "(--max-num-seqs).",
        "engine",
    )


def _preempting() -> Alert:
    preemptions = _SHORT.rate("vitrine_preemptions_total", _REPLICA)
    per_request = preemptions / _SHORT.rate("vitrine_requests_total", _REPLICA)
    return Alert(
        "VitrinePreemptionStorm",
        ((Condition(per_request, ">", 0.5), Condition(preemptions, ">", 0.05)),),
        "5m",
        "ticket",
        f"{_WHO}: {{{{ $value | humanize }}}} preemptions per request",
        "Sequences lose their KV blocks to each other and are computed again. Lower --max-num-seqs or give the pool "
        "more memory (--kv-cache-memory); what it costs is in the tokens computed in vain.",
        "engine",
    )


def _queue() -> Alert:
    waiting = _SHORT.gauge("vitrine_requests_waiting", _REPLICA)
    slope = Queries("10m").slope("vitrine_requests_waiting", _REPLICA)
    return Alert(
        "VitrineQueueGrows",
        ((Condition(waiting, ">", 10), Condition(slope, ">", 0.01)),),
        "10m",
        "ticket",
        f"{_WHO}: {{{{ $value | humanize }}}} sequences wait, and the queue keeps growing",
        "More comes in than is served. The reason for which they wait is on the engine dashboard: kv_blocks asks for "
        "memory, max_running and token_budget for a higher limit if steps are short, and all of them for another "
        "replica.",
        "engine",
    )


def _lost() -> Alert:
    lost = Queries("10m").increase("vitrine_telemetry_dropped_total", ("sink",))
    return Alert(
        "VitrineTelemetryLost",
        ((Condition(lost, ">", 0),),),
        "0s",
        "ticket",
        "{{ $value | humanize }} items lost by the sink {{ $labels.sink }}",
        "spans: is the OTLP endpoint up? store and token_log: is the disk full? All sinks at once: telemetry cannot "
        "keep up with the journals, give the machine CPU. The log of the telemetry process (logs/) has the errors.",
        "replicas",
    )


def _lag() -> Alert:
    lag = _SHORT.gauge("vitrine_telemetry_lag_seconds", (), "max")
    return Alert(
        "VitrineTelemetryLags",
        ((Condition(lag, ">", 5),),),
        "2m",
        "ticket",
        "Telemetry is {{ $value | humanizeDuration }} behind",
        "Pages, metrics and traces are late, and records will be lost when the lag outgrows the journals. Look for a "
        "slow disk or OTLP endpoint, and for a machine with no CPU left for the niced telemetry process.",
        "replicas",
    )

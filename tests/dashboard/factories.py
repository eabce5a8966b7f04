"""A store, gauge pages and a directory as a running engine leaves them, without an engine."""

from __future__ import annotations

import math
import os
import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Engine, create_engine, insert
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from dashboard.commands import Commands
from dashboard.live import Live
from dashboard.sources import Sources
from dashboard.store import Store
from engine.config import Config
from engine.messages import Directory, ReplicaEntry
from telemetry import schema
from telemetry.events import REPLICA_STAGES, ReplicaInfo, ReplicaState, Stage
from telemetry.gauges import Gauge, GaugeBoard, GaugePage, PageOwner

MODEL = "smollm2-135m-instruct"
INCARNATION = "run-1/r0.1"
TEXT = "In the vitrine stood a small glass fox 🦊, and nobody could say how long. A vitrine shows what is inside it."


class NoMetrics:
    """Telemetry is away."""

    async def ask(self, accept: str) -> tuple[str, bytes] | None:
        return None


def make_tokenizer(folder: Path) -> Tokenizer:
    """A small byte-level tokenizer, written where a model's would be."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|im_end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["In the vitrine stood a small glass; what is inside shows"] * 3, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def make_request(request_id: str, received_ts: float, **changes: Any) -> dict[str, Any]:
    """A row of a finished streaming request whose parts add up."""
    parts = {"tokenize_s": 0.0008, "queue_s": 0.0121, "preempted_s": 0.0, "prefill_s": 0.0482, "decode_s": 0.7463}
    parts |= {name: changes.pop(name) for name in list(parts) if name in changes}
    parts |= {"drain_s": 0.0011, "transport_s": 0.0016, "unaccounted_s": 0.0004}
    e2e = sum(parts.values())
    start = 0.0009 + parts["tokenize_s"]
    scheduled = start + parts["queue_s"]
    first = scheduled + parts["prefill_s"]
    last = first + parts["preempted_s"] + parts["decode_s"]
    row = {
        "request_id": request_id,
        "received_ts": received_ts,
        "updated_ts": received_ts + e2e,
        "state": "finished",
        "finish_reason": "stop",
        "http_status": 200,
        "endpoint": "/v1/chat/completions",
        "model": MODEL,
        "stream": True,
        "num_sequences": 1,
        "client_request_id": "",
        "trace_id": f"{abs(hash(request_id)) % 2**64:032x}",
        "replica": "r0",
        "incarnation_id": INCARNATION,
        "params": {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256, "seed": 7},
        "prompt_tokens": 212,
        "cached_tokens": 96,
        "output_tokens": 48,
        "wasted_tokens": 0,
        "preemptions": 0,
        "tokenize_start_at": 0.0009,
        "tokenize_end_at": start,
        "enqueued_at": start,
        "scheduled_at": scheduled,
        "first_sampled_at": first,
        "first_increment_at": first + 0.0009,
        "last_sampled_at": last,
        "finished_at": last + 0.0008,
        "sent_at": e2e,
        "ttft_s": first + 0.0009,
        "e2e_s": e2e,
        "detokenize_s": 0.0043,
        "tpot_s": parts["decode_s"] / 47,
        "itl_p50_s": parts["decode_s"] / 47,
        "itl_max_s": parts["decode_s"] / 11,
        **parts,
    }
    return row | changes


_TIMES = (
    "itl_p50",
    "itl_max",
    "detokenize",
    "tokenize",
    "queue",
    "preempted",
    "prefill",
    "decode",
    "drain",
    "transport",
    "unaccounted",
    "e2e",
    "ttft",
    "tpot",
)


def make_unfinished(request_id: str, received_ts: float, state: str, **changes: Any) -> dict[str, Any]:
    """A row of a request that still goes on."""
    unknown = dict.fromkeys((f"{name}_s" for name in _TIMES), None)
    later = {"finish_reason": None, "http_status": None, "last_sampled_at": None, "finished_at": None, "sent_at": None}
    if state != "running":
        later |= {"scheduled_at": None, "first_sampled_at": None, "first_increment_at": None, "output_tokens": None}
    else:
        later |= {"ttft_s": 0.0632}
    return make_request(request_id, received_ts) | unknown | later | {"state": state} | changes


def make_refused(request_id: str, received_ts: float, **changes: Any) -> dict[str, Any]:
    """A row of a request that the tokenizer refused."""
    never = (
        "enqueued_at",
        "scheduled_at",
        "first_sampled_at",
        "first_increment_at",
        "last_sampled_at",
        "ttft_s",
        "tpot_s",
    )
    never += ("queue_s", "prefill_s", "decode_s", "preempted_s", "drain_s", "detokenize_s", "itl_p50_s", "itl_max_s")
    never += ("replica", "prompt_tokens", "cached_tokens", "output_tokens")
    row = make_request(request_id, received_ts) | dict.fromkeys(never, None)
    row |= {
        "finish_reason": "error",
        "http_status": 400,
        "error_type": "invalid_request_error",
        "e2e_s": 0.0031,
        "sent_at": 0.0031,
    }
    row |= {
        "error_message": "This model's context is 2048 tokens; the prompt has 1,990 and max_tokens is 256.",
        "finished_at": 0.003,
    }
    return row | {"transport_s": 0.0019} | changes


def make_sequence(request: dict[str, Any], index: int = 0, **changes: Any) -> dict[str, Any]:
    """The row of one sequence of a finished request."""
    same = (
        "request_id",
        "finish_reason",
        "prompt_tokens",
        "cached_tokens",
        "output_tokens",
        "preemptions",
        "enqueued_at",
    )
    same += ("scheduled_at", "first_sampled_at", "last_sampled_at", "queue_s", "preempted_s", "prefill_s", "decode_s")
    same += ("detokenize_s", "tpot_s")
    row = {name: request[name] for name in same}
    row |= {
        "idx": index,
        "prompt_index": 0,
        "seq_id": 7 + index,
        "seed": 7 + index,
        "stop_string": "",
        "waits": [],
        "chunks": [],
    }
    start, end = request["scheduled_at"], request["first_sampled_at"]
    if start is not None:
        middle = (start + end) / 2
        row["waits"] = [[request["enqueued_at"], "token_budget"], [start, ""]]
        row["chunks"] = [[start, middle - 0.001, 64, 4810], [middle, end, 52, 4811]]
    return row | {"log_file": None, "log_offset": None} | changes


def make_sample(ts: int, load: float = 0.7, **changes: Any) -> dict[str, Any]:
    """One second's sample (keys of `telemetry.samples`)."""
    wave = load * (1 + 0.35 * math.sin(ts / 41) + 0.12 * math.sin(ts / 7)) + random.Random(ts).uniform(-0.05, 0.05)
    running = max(0, round(14 * wave))
    waiting = max(0, round(10 * (wave - 0.8)))
    active = round(60 * running)
    cached = 900 + round(300 * math.sin(ts / 300))
    values: dict[str, Any] = {
        f"{n}_{p}_s": b * k * (0.6 + wave)
        for n, b in (("ttft", 0.07), ("itl", 0.013), ("e2e", 0.8))
        for p, k in (("p50", 1), ("p95", 2.1), ("p99", 3.2))
    }
    values |= {
        "prompt_tokens": round(900 * wave),
        "generation_tokens": round(420 * wave),
        "requests_finished": 5,
        "requests_errors": int(ts % 211 == 0),
    }
    values |= {
        "running": running,
        "waiting": waiting,
        "waiting_kv_blocks": waiting // 2,
        "waiting_token_budget": waiting - waiting // 2,
    }
    values |= {
        "waiting_max_running": 0,
        "waiting_preempted": 0,
        "blocks_active": active,
        "blocks_cached": cached,
        "blocks_free": 2912 - active - cached,
    }
    hit_rate = 0.4 + 0.2 * math.sin(ts / 90)
    values |= {"prefix_queried_tokens": 800, "prefix_hit_tokens": round(800 * hit_rate), "prefix_hit_rate": hit_rate}
    values |= {
        "busy_gateway": 0.11 * wave,
        "busy_tokenizer": 0.04 * wave,
        "busy_scheduler": 0.13 * wave,
        "busy_runner": min(1, 0.8 + 0.15 * wave),
        "busy_detokenizer": 0.05 * wave,
    }
    values |= {
        "prefill_step_s": 0.07,
        "mixed_step_s": 0.21 * wave,
        "decode_step_s": 0.5 * wave,
        "idle_s": 0.02,
        "steps": 60,
        "cost_output": 1.35 / wave,
        "cost_total": 0.41 / wave,
    }
    for kind, flops_share, bytes_share in (("prefill", 0.62, 0.11), ("decode", 0.09, 0.74), ("mixed", 0.35, 0.4)):
        values |= {f"{kind}_flops_share": flops_share, f"{kind}_flops_per_s": 335e9 * flops_share}
        values |= {f"{kind}_bytes_share": bytes_share, f"{kind}_bytes_per_s": 28e9 * bytes_share}
    return {"ts": ts, "replica": "", "values": values | changes}


def make_info(model_path: str = "") -> ReplicaInfo:
    """What identifies the replica."""
    return ReplicaInfo(
        version="0.1.0",
        revision="0d921b3c55aa",
        model=MODEL,
        model_path=model_path,
        model_sha256="9f1c2f6c0b7d4e8f" * 4,
        tokenizer_sha256="3ab86d0211c7f5e0" * 4,
        dtype="bfloat16",
        device="cpu (x86_64)",
        host="bench-1",
        flags={},
        max_model_len=2048,
        block_size=16,
        num_blocks=2912,
    )


class World:
    """A data folder with a store and a token log, a folder of gauge pages, and the directory."""

    def __init__(self, root: Path, config: Config | None = None, now: float | None = None) -> None:
        self.data = root / "data"
        self.gauges = root / "gauges"
        self.model_path = root / "model"
        (self.data / schema.TOKEN_FOLDER).mkdir(parents=True)
        self.gauges.mkdir()
        self.config = config or Config(data_dir=str(self.data))
        self.now = now or time.time()
        self.tokenizer = make_tokenizer(self.model_path)
        self.pages: dict[tuple[str, Stage], GaugePage] = {}
        self.live = Live(GaugeBoard(self.gauges))
        self.live.directory = make_directory(str(self.model_path))
        self._engine: Engine | None = None

    def sources(self, metrics: Any = None) -> Sources:
        """What the application is made from."""
        return Sources(
            config=self.config,
            machine="bench-1",
            run_id="20260730-141500-k3",
            model=MODEL,
            model_path=str(self.model_path),
            store=Store(self.data),
            live=self.live,
            metrics=metrics or NoMetrics(),
            commands=Commands(),
        )

    @property
    def engine(self) -> Engine:
        """The store, made when first written."""
        if self._engine is None:
            self._engine = create_engine(f"sqlite:///{self.data / schema.STORE_FILE}")
            schema.metadata.create_all(self._engine)
        return self._engine

    def add(self, table: str, *rows: dict[str, Any]) -> None:
        """Write rows (those of equal primary key are replaced)."""
        with self.engine.begin() as connection:
            for row in rows:
                connection.execute(insert(schema.metadata.tables[table]).prefix_with("OR REPLACE").values(row))

    def add_finished(self, request: dict[str, Any], prompt: str = "What is in a vitrine?", answer: str = TEXT) -> None:
        """A finished request with its sequence and its line of the token log."""
        line = self.log_line(request, prompt, answer)
        file = self.data / schema.TOKEN_FOLDER / "tokens.jsonl"
        with file.open("ab") as f:
            offset = f.tell()
            f.write(msgspec.json.encode(line) + b"\n")
        self.add("requests", request)
        self.add("sequences", make_sequence(request, log_file=file.name, log_offset=offset))

    def log_line(self, request: dict[str, Any], prompt: str, answer: str) -> dict[str, Any]:
        """The token log's line, its times spread over the request's decode, one gap being slow."""
        ids = self.tokenizer.encode(answer).ids
        first, last = request["first_sampled_at"] or 0.0, request["last_sampled_at"] or 0.0
        weights = [1 + 0.25 * random.Random(i).random() + (6 if i == len(ids) // 3 else 0) for i in range(len(ids) - 1)]
        scale, at, times = (last - first) / (sum(weights) or 1), first, [first * 1000]
        for weight in weights:
            at += weight * scale
            times.append(at * 1000)
        return {
            "ts": datetime.fromtimestamp(request["received_ts"], UTC).isoformat(),
            "request_id": request["request_id"],
            "index": 0,
            "trace_id": request["trace_id"],
            "prompt_token_ids": self.tokenizer.encode(prompt).ids,
            "output_token_ids": ids,
            "token_times_ms": times[: len(ids)],
            "step_ids": list(range(4811, 4811 + len(ids))),
        }

    def add_page(self, stage: Stage, replica: str = "", **values: int) -> GaugePage:
        """The gauge page of a process that is alive (this one)."""
        name = f"{replica + '.' if replica else ''}{stage}.gauges"
        page = GaugePage(self.gauges / name, PageOwner(stage, replica, 1, os.getpid()))
        page.set(Gauge.READY, 1)
        for gauge, value in values.items():
            page.set(Gauge[gauge], value)
        page.beat()
        self.pages[replica, stage] = page
        return page

    def add_pages(self) -> None:
        """All processes of a system with one replica."""
        for stage in (Stage.GATEWAY, Stage.TELEMETRY, Stage.DASHBOARD, Stage.SUPERVISOR):
            self.add_page(stage)
        for stage in REPLICA_STAGES:
            self.add_page(stage, "r0")
        now = time.monotonic_ns()
        for gauge, value in (
            (Gauge.RUNNING, 9),
            (Gauge.WAITING_KV_BLOCKS, 2),
            (Gauge.BLOCKS_TOTAL, 2912),
            (Gauge.BLOCKS_ACTIVE, 540),
            (Gauge.BLOCKS_CACHED, 1022),
            (Gauge.BLOCKS_FREE, 1350),
            (Gauge.LAST_STEP_ID, 48211),
            (Gauge.LAST_STEP_NS, now),
        ):
            self.pages["r0", Stage.SCHEDULER].set(gauge, value)

    def add_history(self, seconds: int = 900) -> None:
        """Samples up to now, and the events of the start and of one crash."""
        end = int(self.now)
        with self.engine.begin() as connection:
            rows = [make_sample(ts) for ts in range(end - seconds, end + 1)]
            connection.execute(insert(schema.samples).prefix_with("OR REPLACE"), rows)
        base = {"replica": "r0", "incarnation": 1, "stage": ""}
        self.add(
            "replica_events",
            {**base, "ts": end - 610, "event": "starting", "reason": "first start"},
            {**base, "ts": end - 604, "event": "ready", "reason": "all 4 stages ready"},
            {**base, "ts": end - 200, "event": "died", "stage": "runner", "reason": "killed by SIGKILL"},
            {**base, "ts": end - 199.8, "event": "starting", "incarnation": 2, "reason": "restart"},
            {**base, "ts": end - 195, "event": "ready", "incarnation": 2, "reason": "all 4 stages ready"},
        )

    def add_traffic(self) -> None:
        """Requests of every kind."""
        now = self.now
        rng = random.Random(1)
        for i in range(70):
            row = make_request(
                f"req-{1796100000000 + 8000 * i:012x}{rng.getrandbits(48):012x}",
                now - 600 + 8 * i,
                decode_s=rng.uniform(0.2, 1.4),
                prefill_s=rng.uniform(0.02, 0.15),
                queue_s=rng.expovariate(30),
            )
            row |= {
                "output_tokens": rng.randrange(20, 200),
                "prompt_tokens": rng.randrange(40, 900),
                "finish_reason": rng.choice(["stop", "stop", "length"]),
            }
            row |= {"endpoint": rng.choice(["/v1/chat/completions", "/v1/completions"])}
            self.add("requests", row)
        slow = make_request("req-slow01", now - 31, queue_s=1.84, preempted_s=0.42, preemptions=1)
        self.add_finished(slow)
        self.add("sequences", make_sequence(slow, waits=_waits_of_slow(slow), log_file="tokens.jsonl", log_offset=0))
        self.add_finished(make_request("req-good01", now - 12))
        self.add("requests", make_refused("req-refused", now - 9))
        self.add(
            "requests", make_request("req-abort1", now - 7, finish_reason="abort", http_status=0, output_tokens=11)
        )
        self.add(
            "requests",
            make_refused(
                "req-failed",
                now - 5,
                http_status=502,
                error_type="server_error",
                error_message="the replica died: runner killed by SIGKILL",
                replica="r0",
            ),
        )
        self.add("requests", make_unfinished("req-run001", now - 2.4, "running", output_tokens=31))
        self.add("requests", make_unfinished("req-wait01", now - 1.1, "waiting"))


def _waits_of_slow(row: dict[str, Any]) -> list[list[Any]]:
    start, scheduled, first = row["enqueued_at"], row["scheduled_at"], row["first_sampled_at"]
    return [
        [start, "max_running"],
        [start + 0.3, "kv_blocks"],
        [scheduled, ""],
        [first + 0.2, "preempted"],
        [first + 0.62, ""],
    ]


def make_directory(model_path: str = "", state: ReplicaState = ReplicaState.READY) -> Directory:
    """One replica."""
    entry = ReplicaEntry(
        "r0", 1, state, "all 4 stages ready", time.monotonic_ns() - 600_000_000_000, 1, {}, make_info(model_path)
    )
    return Directory(1, "ipc:///nowhere", [entry])


def full_world(root: Path, config: Config | None = None) -> World:
    """Everything at once."""
    world = World(root, config)
    world.add_pages()
    world.add_history()
    world.add_traffic()
    return world

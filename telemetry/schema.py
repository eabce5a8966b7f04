"""The store's tables (SQLAlchemy Core). Written by the telemetry process alone, read by the dashboard.

Times of day are wall-clock seconds since the epoch (float, ``…_ts``); times within a request are seconds
since it was received (``…_at``); durations are seconds (``…_s``). Times of stages are columns, not rows.
The definitions are those of the metrics of the same name.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql

metadata = MetaData()

Id = String().with_variant(postgresql.VARCHAR(collation="C"), "postgresql")
"""Text that is compared byte by byte, as SQLite does, whatever the database's language."""

SCHEMA_VERSION = 3
STORE_FILE = "vitrine.db"
TOKEN_FOLDER = "tokens"
"""Names within the data folder."""

MIGRATIONS = {
    1: ("ALTER TABLE steps ADD COLUMN execute_at FLOAT",),
    2: (
        "DROP INDEX IF EXISTS ix_requests_ttft",
        "CREATE INDEX IF NOT EXISTS ix_requests_error ON requests (error_type, received_ts) "
        "WHERE error_type IS NOT NULL",
    ),
}
"""By the schema that a store has: the statements that make it one of the next."""

schema_version = Table("schema_version", metadata, Column("version", Integer, primary_key=True))

incarnations = Table(
    "incarnations",
    metadata,
    Column("id", Id, primary_key=True),  # "<run id>/<replica>.<incarnation>"
    Column("replica", String, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("state", String, nullable=False),  # ReplicaState
    Column("reason", Text, nullable=False, default=""),
    Column("started_ts", Float, nullable=False),
    Column("ready_ts", Float),
    Column("ended_ts", Float),
    Column("version", String),
    Column("revision", String),
    Column("model", String),
    Column("model_path", Text),
    Column("model_sha256", String),
    Column("tokenizer_sha256", String),
    Column("dtype", String),
    Column("device", String),
    Column("host", String),
    Column("flags", JSON),
    Column("max_model_len", Integer),
    Column("block_size", Integer),
    Column("num_blocks", Integer),
)
"""One row per incarnation of a replica: what every request and step refers to."""

requests = Table(
    "requests",
    metadata,
    Column("request_id", Id, primary_key=True),
    Column("received_ts", Float, nullable=False),
    Column("updated_ts", Float, nullable=False),
    Column("state", String, nullable=False),  # tokenizing, waiting, running, finished
    Column("finish_reason", String),  # stop, length, abort, error; null while it runs
    Column("http_status", Integer),
    Column("error_type", String),
    Column("error_message", Text),
    Column("endpoint", String, nullable=False),
    Column("model", String, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("num_sequences", Integer, nullable=False),
    Column("client_request_id", String),
    Column("trace_id", String, nullable=False),
    Column("replica", String),
    Column("incarnation_id", String),
    Column("params", JSON, nullable=False),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("output_tokens", Integer),
    Column("wasted_tokens", Integer),
    Column("preemptions", Integer),
    # points in time, seconds since received
    Column("tokenize_start_at", Float),
    Column("tokenize_end_at", Float),
    Column("enqueued_at", Float),
    Column("scheduled_at", Float),
    Column("first_sampled_at", Float),
    Column("first_increment_at", Float),
    Column("last_sampled_at", Float),
    Column("finished_at", Float),
    Column("sent_at", Float),
    # durations; of several sequences those of the one whose last token came last, so that they add up:
    # tokenize + queue + preempted + prefill + decode + drain + transport + unaccounted = e2e
    Column("ttft_s", Float),
    Column("e2e_s", Float),
    Column("tokenize_s", Float),
    Column("queue_s", Float),
    Column("preempted_s", Float),
    Column("prefill_s", Float),
    Column("decode_s", Float),
    Column("drain_s", Float),
    Column("detokenize_s", Float),
    Column("transport_s", Float),
    Column("unaccounted_s", Float),
    Column("tpot_s", Float),
    Column("itl_p50_s", Float),
    Column("itl_max_s", Float),
    Index("ix_requests_received", "received_ts", "request_id"),
    Index("ix_requests_state", "state", "received_ts"),
    Index("ix_requests_trace", "trace_id"),
    Index("ix_requests_client_id", "client_request_id"),
    Index("ix_requests_finish", "finish_reason", "received_ts"),
    Index("ix_requests_replica", "replica", "received_ts"),
    Index(
        "ix_requests_error",
        "error_type",
        "received_ts",
        sqlite_where=text("error_type IS NOT NULL"),
        postgresql_where=text("error_type IS NOT NULL"),
    ),
)
"""One row per HTTP call, there from the moment it is received, so that running requests are listed too."""

sequences = Table(
    "sequences",
    metadata,
    Column("request_id", Id, primary_key=True),
    Column("idx", Integer, primary_key=True),
    Column("prompt_index", Integer, nullable=False),
    Column("seq_id", BigInteger),
    Column("finish_reason", String),
    Column("seed", BigInteger),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("output_tokens", Integer),
    Column("preemptions", Integer),
    Column("stop_string", Text),
    Column("enqueued_at", Float),
    Column("scheduled_at", Float),
    Column("first_sampled_at", Float),
    Column("last_sampled_at", Float),
    Column("queue_s", Float),
    Column("preempted_s", Float),
    Column("prefill_s", Float),
    Column("decode_s", Float),
    Column("detokenize_s", Float),
    Column("tpot_s", Float),
    Column("waits", JSON),  # [[at_s, reason], …]: each change of the reason for waiting; "" when admitted
    Column("chunks", JSON),  # [[start_at, end_at, tokens, step_id], …]: the prefill chunks
    Column("log_file", Text),  # token log file (its name within tokens/) and byte offset of this sequence's line
    Column("log_offset", BigInteger),
)
"""One row per (prompt, choice), written when its request has finished."""

steps = Table(
    "steps",
    metadata,
    Column("incarnation_id", Id, primary_key=True),
    Column("step_id", BigInteger, primary_key=True),
    Column("planned_ts", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("num_seqs", Integer, nullable=False),
    Column("num_tokens", Integer, nullable=False),
    Column("schedule_s", Float, nullable=False),
    Column("execute_s", Float, nullable=False),
    Column("sample_s", Float, nullable=False),
    Column("publish_s", Float, nullable=False),
    Column("idle_s", Float, nullable=False),
    Column("duration_s", Float, nullable=False),
    Column("blocks_free", Integer, nullable=False),
    Column("blocks_active", Integer, nullable=False),
    Column("blocks_cached", Integer, nullable=False),
    Column("waiting", Integer, nullable=False),
    Column("head_request_id", String),
    Column("head_reason", String),
    Column("execute_at", Float),  # seconds from the plan to the start of execution; null in rows of schema 1
    Column("plan", LargeBinary),  # MessagePack: [[request_id, idx, start, num_tokens, sampled], …]
    Index("ix_steps_planned", "planned_ts"),
)
"""A ring of the last steps (bounded by number)."""

samples = Table(
    "samples",
    metadata,
    Column("ts", BigInteger, primary_key=True),  # the second
    Column("replica", String, primary_key=True),  # "" for the whole system
    Column("values", JSON, nullable=False),
)
"""One row per second and replica: what the overview's charts draw. Keys: see telemetry.samples."""

replica_events = Table(
    "replica_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("ts", Float, nullable=False),
    Column("replica", String, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("event", String, nullable=False),  # a ReplicaState, or "died"
    Column("stage", String, nullable=False, default=""),
    Column("reason", Text, nullable=False),
    Index("ix_replica_events_ts", "ts"),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("ts", Float, nullable=False),
    Column("who", String, nullable=False),
    Column("action", String, nullable=False),
    Column("target", String, nullable=False),
    Column("result", Text, nullable=False),
)

collector_state = Table(
    "collector_state",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)
"""What the telemetry process needs to go on after a crash: counters, and how far the token log is covered."""

cursors = Table(
    "cursors",
    metadata,
    Column("journal", Text, primary_key=True),  # absolute path
    Column("cursor", BigInteger, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
)
"""How far each journal has been read; moves in the same transaction as the rows made from it."""

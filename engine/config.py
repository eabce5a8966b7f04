"""Settings: one table, read from flags, environment (``VITRINE_…``) and a TOML file, in that order of weight.

`Config` is the table. A field's description is its help text everywhere: ``vitrine serve --help``,
``vitrine config`` and the README.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import platformdirs
from msgspec import Meta

from engine.complaints import describe

OnOff = Literal["on", "off"]
Positive = Annotated[int, Meta(ge=1)]
Port = Annotated[int, Meta(ge=1, le=65535)]
DEFAULT_MODEL = "smollm2-135m-instruct"
SECRETS = frozenset({"api_key", "operator_token", "store_url"})
"""Settings whose values are never shown, logged, or kept with a crash."""

OTLP_SCHEMES = ("http", "https", "grpc", "grpcs")
_MIN_TOKEN_LOG_BYTES = 4 << 10


class ConfigError(Exception):
    """A setting is wrong; the message is one line that names it and says what would be right."""


def doc(text: str) -> Meta:
    """The help text of a setting."""
    return Meta(description=text)


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. Sizes in bytes take suffixes (``512M``, ``2G``)."""

    model: Annotated[str, doc("Model: a known name, a Hugging Face folder, a GGUF file, or a Hub id")] = DEFAULT_MODEL
    served_model_name: Annotated[str, doc("Name the API knows the model by [its short name]")] = ""
    host: Annotated[str, doc("Address that both ports bind to")] = "127.0.0.1"
    port: Annotated[Port, doc("Port of the API")] = 8000
    dashboard_port: Annotated[Port, doc("Port of the dashboard")] = 8001
    replicas: Annotated[Positive, doc("Replicas of the model to run")] = 1
    data_dir: Annotated[str, doc("Folder for the store, token log, journals, crash dumps and logs")] = ""
    cache_dir: Annotated[str, doc("Folder for downloaded and converted models")] = ""
    dtype: Annotated[Literal["bfloat16", "float32"], doc("Number format of weights and KV cache")] = "bfloat16"
    device: Annotated[
        Literal["auto", "cpu", "cuda", "simulated"],
        doc("Where the model runs; simulated: nowhere, ids are drawn at random, to measure all that is around a model"),
    ] = "auto"
    simulated_step: Annotated[
        str, doc("Simulated device: microseconds per step, per prompt token and per decoding sequence")
    ] = "2000,20,10"
    threads: Annotated[int, Meta(ge=0), doc("Threads of the forward pass, 0: one per core")] = 0
    max_model_len: Annotated[int, Meta(ge=0), doc("Longest context in tokens, 0: what the model allows")] = 0
    block_size: Annotated[int, Meta(ge=1, le=1024), doc("Tokens per KV block")] = 16
    kv_blocks: Annotated[int, Meta(ge=0), doc("KV blocks in the pool, 0: from --kv-cache-memory")] = 0
    kv_cache_memory: Annotated[str, doc("Memory for the KV pool")] = "1G"
    max_num_batched_tokens: Annotated[
        Positive, doc("Tokens computed per step at most; also bounds a prefill chunk")
    ] = 512
    max_num_seqs: Annotated[Positive, doc("Sequences running at once at most")] = 64
    prefill_share: Annotated[
        float, Meta(gt=0, le=1), doc("Share of a step's tokens that prompts may take while others stream")
    ] = 1.0
    priority_aging: Annotated[
        float, Meta(ge=0, le=86_400), doc("Seconds of waiting that one level of a request's priority is worth")
    ] = 10.0
    overlap: Annotated[OnOff, doc("Plan the next step while the runner computes the one before")] = "off"
    max_queue: Annotated[Positive, doc("Requests in flight per replica at most, then 429")] = 512
    max_tokens_in_flight: Annotated[
        Positive, doc("Prompt and answer tokens in flight per replica at most (estimated), then 429")
    ] = 4_000_000
    max_body_bytes: Annotated[Positive, doc("Longest request body")] = 32 << 20
    prefix_cache: Annotated[OnOff, doc("Reuse the KV blocks of equal prompt beginnings")] = "on"
    chat_template: Annotated[str, doc("File with a chat template to use instead of the model's")] = ""
    drain_timeout: Annotated[
        float, Meta(ge=0, le=86_400), doc("Seconds that running requests get to finish after SIGTERM")
    ] = 30.0
    request_timeout: Annotated[
        float, Meta(ge=0, le=86_400), doc("Seconds that a request may take, then 504; 0: no limit")
    ] = 0.0
    telemetry: Annotated[OnOff, doc("Spans, metrics, token log and store (health and gauges stay)")] = "on"
    store_url: Annotated[
        str, doc("Database of the store: postgresql://user:password@host/database  [a SQLite file in --data-dir]")
    ] = ""
    store_retention: Annotated[
        float, Meta(ge=0, le=36_500), doc("Days that requests are kept in the store, 0: for ever")
    ] = 30.0
    store_retention_bytes: Annotated[
        str, doc("Size of the store from which on its oldest requests are deleted, 0: no limit")
    ] = "10G"
    token_log: Annotated[Literal["off", "ids", "full"], doc("Token log: none, ids, or ids and text")] = "ids"
    token_log_max_bytes: Annotated[str, doc("Size at which a new token log file begins")] = "64M"
    token_log_max_age: Annotated[
        float, Meta(ge=0, le=87_600), doc("Hours after which a new token log file begins, 0: no limit")
    ] = 24.0
    token_log_retention: Annotated[
        float, Meta(ge=0, le=36_500), doc("Days after its last line that a token log file is deleted, 0: never")
    ] = 30.0
    token_log_retention_bytes: Annotated[
        str, doc("Size of all token log files from which on the oldest are deleted, 0: no limit")
    ] = "10G"
    token_log_fsync: Annotated[
        Literal["off", "rotate", "always"],
        doc("Bring the token log to the disk: never (enough unless the power fails), per file, per write"),
    ] = "off"
    otlp_endpoint: Annotated[
        str,
        doc("OTLP endpoint for spans: http(s)://localhost:4318 or grpc(s)://localhost:4317  [OTEL_… variables]"),
    ] = ""
    jaeger_url: Annotated[str, doc("Where a browser finds Jaeger: the dashboard links to its traces there")] = ""
    trace_ratio: Annotated[
        float,
        Meta(ge=0, le=1),
        doc("Share of requests whose spans are exported (failed and slow ones always are)"),
    ] = 1.0
    step_trace_ratio: Annotated[
        float, Meta(ge=0, le=1), doc("Share of engine steps exported as traces of their own (slow ones always are)")
    ] = 0.0
    objective_ttft: Annotated[
        float, Meta(gt=0, le=86_400), doc("Seconds within which 95 % of first tokens are to come")
    ] = 1.0
    objective_itl: Annotated[
        float, Meta(gt=0, le=86_400), doc("Seconds within which 95 % of tokens are to follow another")
    ] = 0.1
    price_per_hour: Annotated[
        float, Meta(ge=0), doc("What one replica costs per hour, in any currency: shown as cost per million tokens")
    ] = 0.0
    api_key: Annotated[str, doc("Key that API clients must send as a bearer token")] = ""
    operator_token: Annotated[str, doc("Token that the dashboard asks for")] = ""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], doc("Level of the process logs")] = "info"

    @property
    def data_path(self) -> Path:
        """The data folder, the platform's user data folder by default."""
        return Path(self.data_dir or platformdirs.user_data_dir("vitrine", appauthor=False)).expanduser()

    @property
    def cache_path(self) -> Path:
        """The model cache folder, the platform's user cache folder by default."""
        return Path(self.cache_dir or platformdirs.user_cache_dir("vitrine", appauthor=False)).expanduser()

    @property
    def kv_cache_bytes(self) -> int:
        """``kv_cache_memory`` in bytes. Raises ConfigError."""
        return parse_bytes(self.kv_cache_memory, "--kv-cache-memory")

    @property
    def store_total_bytes(self) -> int:
        """``store_retention_bytes`` in bytes. Raises ConfigError."""
        return parse_bytes(self.store_retention_bytes, "--store-retention-bytes")

    @property
    def token_log_file_bytes(self) -> int:
        """``token_log_max_bytes`` in bytes. Raises ConfigError."""
        return parse_bytes(self.token_log_max_bytes, "--token-log-max-bytes")

    @property
    def token_log_total_bytes(self) -> int:
        """``token_log_retention_bytes`` in bytes. Raises ConfigError."""
        return parse_bytes(self.token_log_retention_bytes, "--token-log-retention-bytes")


class SimulatedStep(msgspec.Struct, frozen=True):
    """How long a step takes on a simulated device."""

    constant_ns: int
    prefill_token_ns: int
    decode_ns: int

    @classmethod
    def parse(cls, text: str) -> SimulatedStep:
        """``"2000,20,10"``, in microseconds. Raises ConfigError."""
        try:
            numbers = [int(float(part) * 1000) for part in text.split(",")]
        except (ValueError, OverflowError):
            numbers = []
        if len(numbers) != 3 or min(numbers) < 0:
            raise ConfigError(f"--simulated-step: {text!r} is not three numbers of microseconds, like 2000,20,10")
        return cls(*numbers)

    def duration_ns(self, prefill_tokens: int, decodes: int) -> int:
        """The time of one step."""
        return self.constant_ns + self.prefill_token_ns * prefill_tokens + self.decode_ns * decodes


class Setting(msgspec.Struct, frozen=True):
    """One row of the table, as the command line needs it."""

    name: str
    help: str
    default: Any
    kind: type
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """``--like-this``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """``VITRINE_LIKE_THIS``."""
        return "VITRINE_" + self.name.upper()


def settings() -> list[Setting]:
    """The table, in the order of `Config`."""
    hints = get_type_hints(Config, include_extras=True)
    return [_setting(field.name, field.default, hints[field.name]) for field in msgspec.structs.fields(Config)]


def _setting(name: str, default: Any, hint: Any) -> Setting:
    base = get_args(hint)[0]
    text = next(m.description for m in get_args(hint)[1:] if isinstance(m, Meta) and m.description)
    choices = get_args(base) if get_origin(base) is Literal else ()
    return Setting(name, text, default, type(default), choices)


def resolve(
    flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ, file: str | None = None
) -> tuple[Config, dict[str, str]]:
    """Put a Config together, and say for each setting where its value came from.

    `flags` holds those given on the command line by field name. Raises ConfigError.
    """
    from_file = _read_toml(file) if file else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting in settings():
        if setting.name in flags:
            values[setting.name], origins[setting.name] = flags[setting.name], setting.flag
        elif setting.variable in environment:
            values[setting.name], origins[setting.name] = environment[setting.variable], setting.variable
        elif setting.name in from_file:
            values[setting.name], origins[setting.name] = from_file.pop(setting.name), str(file)
        else:
            origins[setting.name] = "default"
        from_file.pop(setting.name, None)
    if from_file:
        raise ConfigError(f"{file}: there is no setting named {sorted(from_file)[0]!r}; see vitrine config")
    config = _convert(values, origins)
    _check(config)
    return config, origins


def _read_toml(file: str) -> dict[str, Any]:
    try:
        with Path(file).open("rb") as f:
            table = tomllib.load(f)
    except OSError as e:
        raise ConfigError(f"cannot read the configuration file {file}: {e.strerror}") from e
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{file} is not valid TOML: {e}") from e
    return {key.replace("-", "_"): value for key, value in table.items()}


def _convert(values: dict[str, Any], origins: dict[str, str]) -> Config:
    for setting in settings():
        if setting.name not in values:
            continue
        value, origin = values[setting.name], origins[setting.name]
        try:
            msgspec.convert({setting.name: value}, Config, strict=False)
        except msgspec.ValidationError as e:
            where = origin if origin in (setting.flag, setting.variable) else f"{origin}: {setting.name}"
            needed = f"one of {', '.join(setting.choices)}" if setting.choices else describe(Config, setting.name)
            raise ConfigError(f"{where}: {value!r} is not {needed}") from e
    return msgspec.convert(values, Config, strict=False)


def _check(config: Config) -> None:
    if config.port == config.dashboard_port:
        raise ConfigError(f"--port and --dashboard-port are both {config.port}; choose two")
    _ = config.kv_cache_bytes, config.store_total_bytes
    if config.store_url and not config.store_url.startswith("postgresql://"):
        raise ConfigError("--store-url must look like postgresql://user:password@host/database")
    _check_token_log(config)
    SimulatedStep.parse(config.simulated_step)
    _check_otlp_endpoint(config.otlp_endpoint)
    if config.jaeger_url and not config.jaeger_url.startswith(("http://", "https://")):
        raise ConfigError(f"--jaeger-url: {config.jaeger_url!r} must begin with http:// or https://")
    _check_chat_template(config.chat_template)
    if is_loopback(config.host):
        return
    if not config.api_key or not config.operator_token:
        raise ConfigError(
            f"--host {config.host} is reachable from outside: set --api-key and --operator-token, or bind to 127.0.0.1"
        )


def _check_token_log(config: Config) -> None:
    if config.token_log_file_bytes < _MIN_TOKEN_LOG_BYTES:
        raise ConfigError(f"--token-log-max-bytes: {config.token_log_max_bytes!r} is too small; give 4K or more")
    if 0 < config.token_log_total_bytes < config.token_log_file_bytes:
        raise ConfigError(
            f"--token-log-retention-bytes: {config.token_log_retention_bytes!r} is less than one file "
            f"(--token-log-max-bytes {config.token_log_max_bytes}): raise it, or lower that"
        )


def _check_otlp_endpoint(endpoint: str) -> None:
    scheme, _, address = endpoint.partition("://")
    if endpoint and not (scheme in OTLP_SCHEMES and address):
        allowed = ", ".join(f"{scheme}://" for scheme in OTLP_SCHEMES)
        raise ConfigError(f"--otlp-endpoint: {endpoint!r} must begin with one of {allowed} and name a host")


def _check_chat_template(file: str) -> None:
    """The tokenizer process reads it; but a wrong path need not wait until a replica starts."""
    if not file:
        return
    try:
        Path(file).expanduser().open("rb").close()
    except OSError as e:
        raise ConfigError(f"--chat-template: cannot read {file}: {e.strerror}") from e


def is_loopback(host: str) -> bool:
    """Whether nobody but this host can connect to `host`."""
    return host in ("localhost", "::1") or host.startswith("127.")


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str, flag: str) -> int:
    """``"1.5G"`` → 1610612736. Raises ConfigError naming `flag`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not match:
        raise ConfigError(f"{flag}: {text!r} is not a size; write bytes or use a suffix, like 512M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])

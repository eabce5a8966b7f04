from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import OTLP_SCHEMES, Config, ConfigError, is_loopback, parse_bytes, resolve, settings
from telemetry.export import make_exporter


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "vitrine.toml"
        path.write_text(text)
        return str(path)

    return write


def refusal(flags=None, environment=None, file=None) -> str:
    with pytest.raises(ConfigError) as failure:
        resolve(flags or {}, environment or {}, file)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def test_without_anything_all_is_default():
    config, origins = resolve({}, {})
    assert config == Config()
    assert set(origins.values()) == {"default"}


def test_flag_wins_over_environment_wins_over_file(toml):
    file = toml("port = 1\ndashboard-port = 2\nreplicas = 3\n")
    config, origins = resolve({"port": "9"}, {"VITRINE_PORT": "8", "VITRINE_DASHBOARD_PORT": "7"}, file)
    assert (config.port, config.dashboard_port, config.replicas) == (9, 7, 3)
    assert (origins["port"], origins["dashboard_port"], origins["replicas"]) == (
        "--port",
        "VITRINE_DASHBOARD_PORT",
        file,
    )


@pytest.mark.parametrize("key", ["max-num-seqs", "max_num_seqs"])
def test_a_file_may_use_hyphens_or_underscores(toml, key):
    assert resolve({}, {}, toml(f"{key} = 5"))[0].max_num_seqs == 5


def test_every_setting_can_be_given_as_text():
    texts = {setting.name: str(setting.default) for setting in settings()}
    config, _ = resolve(texts, {})
    assert config == Config()


def test_every_setting_has_help_a_flag_and_a_variable():
    for setting in settings():
        assert setting.help and not setting.help.endswith(".")
        assert setting.flag == "--" + setting.name.replace("_", "-")
        assert setting.variable == "VITRINE_" + setting.name.upper()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("port", "abc", "a whole number between 1 and 65535"),
        ("port", "0", "a whole number between 1 and 65535"),
        ("port", "65536", "a whole number between 1 and 65535"),
        ("port", "80.5", "a whole number between 1 and 65535"),
        ("replicas", "0", "a whole number of at least 1"),
        ("threads", "-1", "a whole number of at least 0"),
        ("trace_ratio", "1.5", "a number between 0 and 1"),
        ("trace_ratio", "nan", "a number between 0 and 1"),
        ("drain_timeout", "-1", "a number between 0 and 86400"),
        ("drain_timeout", "inf", "a number between 0 and 86400"),
        ("drain_timeout", "nan", "a number between 0 and 86400"),
        ("request_timeout", "-1", "a number between 0 and 86400"),
        ("dtype", "int1", "is not one of bfloat16, float32"),
        ("prefix_cache", "yes", "is not one of on, off"),
        ("kv_cache_memory", "lots", "512M"),
        ("token_log_max_bytes", "1K", "give 4K or more"),
        ("token_log_max_bytes", "big", "512M"),
        ("token_log_retention_bytes", "1M", "less than one file (--token-log-max-bytes 64M)"),
        ("token_log_retention_bytes", "-1", "512M"),
        ("token_log_max_age", "-1", "a number between 0 and 87600"),
        ("token_log_retention", "nan", "a number between 0 and 36500"),
        ("token_log_fsync", "sometimes", "is not one of off, rotate, always"),
    ],
)
def test_a_wrong_value_is_named_with_where_it_came_from_and_what_would_be_right(toml, name, value, says):
    setting = next(s for s in settings() if s.name == name)
    by_flag = refusal({name: value})
    assert by_flag.startswith(setting.flag) and value in by_flag and says in by_flag
    if setting.kind is str and not setting.choices:  # checked after its origin is forgotten
        return
    assert refusal({}, {setting.variable: value}).startswith(setting.variable + ":")
    file = toml(f'{name} = "{value}"')
    assert refusal(file=file).startswith(f"{file}: {name}:")


def test_an_unknown_setting_in_the_file_is_refused(toml):
    assert "prot" in refusal(file=toml("prot = 1"))


def test_a_file_that_is_not_toml_or_not_there_is_refused(toml, tmp_path):
    assert "not valid TOML" in refusal(file=toml("port = = 1"))
    assert "cannot read" in refusal(file=str(tmp_path / "none.toml"))


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://h:1", "http://", "://h", "http:/h", "HTTP//h"])
def test_an_otlp_endpoint_of_another_kind_is_refused(endpoint):
    said = refusal({"otlp_endpoint": endpoint})
    assert said.startswith("--otlp-endpoint: ") and endpoint in said and "grpc://" in said


@pytest.mark.parametrize("scheme", OTLP_SCHEMES)
def test_an_otlp_endpoint_may_be_of_every_kind_that_the_exporter_has(scheme):
    endpoint = f"{scheme}://localhost:4317"
    assert resolve({"otlp_endpoint": endpoint}, {})[0].otlp_endpoint == endpoint
    assert make_exporter(endpoint) is not None


def test_a_chat_template_that_cannot_be_read_is_refused(tmp_path):
    assert "No such file" in refusal({"chat_template": str(tmp_path / "none.jinja")})
    assert "directory" in refusal({"chat_template": str(tmp_path)})
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    resolve({"chat_template": str(tmp_path / "chat.jinja")}, {})


def test_equal_ports_are_refused():
    assert "--dashboard-port" in refusal({"port": "9000", "dashboard_port": "9000"})


@pytest.mark.parametrize("given", [{}, {"api_key": "a"}, {"operator_token": "b"}])
def test_reachable_from_outside_needs_both_secrets(given):
    assert "--api-key" in refusal({"host": "0.0.0.0", **given})


def test_reachable_from_outside_with_both_secrets_is_allowed():
    assert resolve({"host": "0.0.0.0", "api_key": "a", "operator_token": "b"}, {})[0].host == "0.0.0.0"


@pytest.mark.parametrize(("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("::", False)])
def test_loopback(host, loopback):
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("1k", 1024), ("1.5G", 3 << 29), ("2 GiB", 2 << 30), ("3MB", 3 << 20), ("1T", 1 << 40)],
)
def test_sizes(text, expected):
    assert parse_bytes(text, "--x") == expected


@pytest.mark.parametrize("text", ["", "G", "-1G", "1 X", "1e3", "nan", "1.G"])
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="--x"):
        parse_bytes(text, "--x")


@given(st.text())
def test_any_text_is_a_size_or_refused_in_one_line(text):
    try:
        assert parse_bytes(text, "--x") >= 0
    except ConfigError as e:
        assert "\n" not in str(e)


def test_a_config_survives_being_handed_to_a_child():
    config = Config(port=1234, trace_ratio=0.5, api_key="k")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_folders_default_to_the_platforms():
    assert Config().data_path.name == "vitrine"
    assert Config(data_dir="~/x").data_path.is_absolute()

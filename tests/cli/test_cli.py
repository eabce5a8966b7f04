from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from engine import __version__
from engine.config import settings
from engine.replicas import serve as serve_module

IMPORTED = "import sys, engine.cli; engine.cli.run(sys.argv[1:]); print(*sorted(sys.modules), file=sys.stderr)"


def modules_after(*arguments: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return set(result.stderr.split())


def test_help_imports_no_command_and_no_library_of_one():
    assert not modules_after("--help") & {"torch", "rich", "httpx", "msgspec", "engine.config"}


def test_help_is_fast():
    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "engine.cli", "--help"], check=True, capture_output=True)
        return time.perf_counter() - began

    assert min(once() for _ in range(5)) < 0.3


def test_a_command_that_asks_a_server_does_not_import_torch():
    assert "torch" not in modules_after("requests", "--help") | modules_after("bench", "--help")


def test_without_arguments_it_explains_itself(vitrine):
    status, out, _ = vitrine()
    assert status == 0
    assert "serve" in out and "bench" in out


@pytest.mark.parametrize("command", ["serve", "config", "model", "requests", "replicas", "bench", "version"])
def test_every_command_has_help(vitrine, command):
    status, out, _ = vitrine(command, "--help")
    assert status == 0
    assert out.startswith(f"Usage: vitrine {command}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "nonsense"),
        (["serve", "--prot", "1"], "--port"),
        (["serve", "--port"], "--port"),
        (["serve", "extra"], "extra"),
        (["serve", "--dtype", "int1"], "is not one of bfloat16, float32"),
        (["serve", "--config", "/no/such.toml"], "/no/such.toml"),
        (["config", "--host", "0.0.0.0"], "--api-key"),
        (["serve", "--port", "abc"], "a whole number between 1 and 65535"),
        (["requests", "--state", "asleep"], "tokenizing"),
        (["requests", "--finish-reason", "boredom"], "abort"),
        (["requests", "--config", "/no/such.toml"], "/no/such.toml"),
        (["bench", "--url", "nonsense"], "http://"),
        (["bench", "--url", "http://a:b"], "URL"),
        (["bench", "--extra-body", "[1]"], "--extra-body"),
        (["bench", "--extra-body", "{"], "--extra-body"),
        (["bench", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(vitrine, arguments, says):
    assert says in vitrine.refusal(*arguments)
    assert vitrine(*arguments)[0] == 2


def test_help_is_cut_nowhere(vitrine, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert all("..." not in vitrine(*group, "--help")[1].partition("Commands:")[2] for group in ([], ["model"]))


def test_version_as_a_flag_is_one_line(vitrine):
    assert vitrine("--version") == (0, f"vitrine {__version__}\n", "")


def test_version(vitrine):
    status, out, _ = vitrine("version")
    assert status == 0
    assert out.splitlines()[0] == f"vitrine {__version__}"
    assert "torch 2.13" in out


def test_serve_help_lists_every_setting_with_its_variable_and_choices(vitrine):
    _, out, _ = vitrine("serve", "--help")
    words = " ".join(out.split())
    for setting in settings():
        assert f"{setting.flag} " in out
        assert setting.variable in words
        assert "|".join(setting.choices) in words
    assert out.index("\nModel:") < out.index("\nServer:") < out.index("\nEngine:") < out.index("\nTelemetry:")


def test_serve_hands_the_settings_over_and_passes_on_the_exit_status(vitrine, monkeypatch, tmp_path):
    file = tmp_path / "vitrine.toml"
    file.write_text("replicas = 3")
    monkeypatch.setenv("VITRINE_PORT", "9100")
    served = []
    monkeypatch.setattr(serve_module, "serve", lambda config: served.append(config) or 7)
    status, _, _ = vitrine("serve", "--prefix-cache", "off", "--config", str(file))
    assert status == 7
    assert (served[0].replicas, served[0].port, served[0].prefix_cache) == (3, 9100, "off")


def test_config_says_where_each_value_came_from(vitrine, monkeypatch, tmp_path):
    file = tmp_path / "vitrine.toml"
    file.write_text("block-size = 32")
    monkeypatch.setenv("VITRINE_CONFIG", str(file))
    monkeypatch.setenv("VITRINE_REPLICAS", "2")
    _, out, _ = vitrine("config", "--port", "9000", "--json")
    shown = json.loads(out)
    assert set(shown) == {setting.name for setting in settings()}
    assert shown["port"] == {"value": 9000, "from": "--port"}
    assert shown["replicas"] == {"value": 2, "from": "VITRINE_REPLICAS"}
    assert shown["block_size"] == {"value": 32, "from": str(file)}
    assert shown["dtype"] == {"value": "bfloat16", "from": "default"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_config_shows_no_secret(vitrine, form):
    _, out, _ = vitrine("config", "--api-key", "hush-hush", "--operator-token", "hush-hush", *form)
    assert "hush" not in out
    assert "********" in out


def test_config_as_a_table_has_every_setting(vitrine):
    _, out, _ = vitrine("config", "--max-num-seqs", "7")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:]}
    assert rows["max_num_seqs"] == ["7", "--max-num-seqs"]
    assert set(rows) == {setting.name for setting in settings()}


def test_tables_end_without_blanks(vitrine):
    _, out, _ = vitrine("config")
    assert all(line == line.rstrip() != "" for line in out.splitlines())

from __future__ import annotations

import asyncio
import json
import signal
import sys

import pytest
from starlette.responses import PlainTextResponse

from engine.bench.report import DEFINITIONS, Summary
from engine.bench.workload import SCENARIOS
from tests.bench.fake_server import DONE, FakeServer, text, usage, well_behaved

SMALL = ["--requests", "4", "--concurrency", "2", "--output-tokens", "3", "--warmup", "0"]


async def start(*arguments: str):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "engine.cli",
        "bench",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def bench(*arguments: str) -> tuple[int, str, str]:
    process = await start(*arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_run_prints_a_table_and_writes_json(tmp_path):
    file = tmp_path / "bench.json"
    async with FakeServer().running() as server:
        status, out, err = await bench("--url", server.url, *SMALL, "--seed", "5", "--json", str(file))
    assert (status, err) == (0, "")
    for word in ("TTFT", "ITL", "TPOT", "output tokens/s", "4 succeeded"):
        assert word in out
    report = json.loads(file.read_text())
    assert (report["seed"], report["target"]["model"]) == (5, "fake-1")
    assert report["runs"][0]["output_tokens"] == 12
    measures = {name for name in Summary.__struct_fields__ if name.endswith("_s")}
    assert measures | {"tokens_counted_by"} == set(report["definitions"]) == set(DEFINITIONS)


async def test_json_on_standard_output_is_nothing_but_json():
    async with FakeServer().running() as server:
        status, out, err = await bench("--url", server.url, *SMALL, "--json", "-")
    assert status == 0
    assert json.loads(out)["runs"][0]["succeeded"] == 4
    assert "TTFT" in err


async def test_several_scenarios_run_in_order_with_flags_winning(tmp_path):
    file = tmp_path / "bench.json"
    flags = ["--scenario", "short", "--scenario", "single", "--requests", "2", "--json", str(file)]
    async with FakeServer().running() as server:
        await bench("--url", server.url, *flags)
    workloads = [run["workload"] for run in json.loads(file.read_text())["runs"]]
    assert [w["name"] for w in workloads] == ["short", "single"]
    assert [w["requests"] for w in workloads] == [2, 2]
    assert [w["output_tokens"] for w in workloads] == [SCENARIOS[name].output_tokens for name in ("short", "single")]


async def test_a_failed_request_is_shown_and_makes_the_exit_status_1():
    calls = iter(range(100))

    def first_fails(body):
        return well_behaved(body) if next(calls) else PlainTextResponse("[red]busy", 503)

    async with FakeServer(first_fails).running() as server:
        status, out, _ = await bench("--url", server.url, *SMALL)
    assert status == 1
    assert "3 succeeded, 1 failed" in out
    assert "1 x http_503, for example: [red]busy" in out


async def test_a_model_that_the_server_does_not_have_is_one_line_and_no_load():
    async with FakeServer().running() as server:
        status, out, err = await bench("--url", server.url, *SMALL, "--model", "fake-9")
    assert (status, out, server.bodies) == (1, "", [])
    assert "there is no model 'fake-9'; the server has fake-1, fake-2" in err and err.count("\n") == 1


async def test_the_server_is_found_by_its_variables(monkeypatch):
    async with FakeServer().running() as server:
        monkeypatch.setenv("VITRINE_URL", server.url)
        assert (await bench(*SMALL))[0] == 0
        monkeypatch.delenv("VITRINE_URL")
        monkeypatch.setenv("VITRINE_PORT", server.url.rpartition(":")[2])
        assert (await bench(*SMALL))[0] == 0
    assert len(server.bodies) == 8


async def test_nobody_there_is_one_line():
    status, out, err = await bench("--url", "http://127.0.0.1:9")
    assert (status, out) == (1, "")
    assert err.startswith("vitrine: http://127.0.0.1:9/v1: ") and err.count("\n") == 1


async def test_ctrl_c_shows_what_was_measured():
    two_done = asyncio.Event()

    async def then_silence(body):
        if len(server.bodies) > 2:
            two_done.set()
            await asyncio.sleep(60)
        yield text("a", "length") + usage(3, 1) + DONE

    server = FakeServer(then_silence)
    async with server.running():
        process = await start("--url", server.url, *SMALL, "--concurrency", "1", "--json", "-")
        await two_done.wait()
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
    run = json.loads(out)["runs"][0]
    assert (run["succeeded"], run["unfinished"], run["interrupted"]) == (2, 1, True)
    assert "interrupted: 1 requests" in err.decode()
    assert process.returncode == 130


@pytest.mark.parametrize("flags", [["--chat"], ["--prompt-tokens", "50"], ["--shared-prefix-words", "9"]])
async def test_kinds_of_prompts(flags):
    async with FakeServer().running() as server:
        status, _, _ = await bench("--url", server.url, *SMALL, *flags)
    assert status == 0
    assert len(server.bodies) >= 4

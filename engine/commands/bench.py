"""``vitrine bench``."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import uvloop
from rich.console import Console
from rich.text import Text

from engine.bench.client import Client, RequestError, Target
from engine.bench.load import http_client, measure
from engine.bench.overhead import Overhead
from engine.bench.progress import LiveProgress
from engine.bench.report import DEFINITIONS, Summary, headline, latency_table, summarize, totals
from engine.bench.workload import SCENARIOS, Workload
from engine.commands import bench_overhead
from engine.commands.errors import CommandFailedError
from engine.commands.output import show
from engine.commands.plain import plain
from engine.commands.urls import server_options

_T = TypeVar("_T")
_DEFAULT = Workload()
_INTERRUPTED = 130
_SIZES = {
    "requests": (1, "Requests to send"),
    "concurrency": (1, "Requests at once: the next one is sent when one has ended"),
    "prompt_words": (1, "Random words per prompt, about one token each"),
    "prompt_tokens": (1, "Tokens per prompt instead: finds out, with two requests, how many words that takes"),
    "output_tokens": (1, "Tokens to ask for (max_tokens)"),
    "shared_prefix_words": (0, "Words in front of every prompt, always the same"),
    "warmup": (0, "Requests that are sent first and not counted"),
}


def _sizes(function: Any) -> Any:
    """One flag per number of a workload. None means: the scenario's."""
    for name, (least, text) in reversed(_SIZES.items()):
        default = getattr(_DEFAULT, name) or ""
        shown = f"  [default: the scenario's{f', or {default}' if default else ''}]"
        option = click.option("--" + name.replace("_", "-"), type=click.IntRange(least), metavar="N", help=text + shown)
        function = option(function)
    return function


@click.command("bench")
@server_options("port", "api_key", "The server, with or without /v1.")
@click.option("--model", default="", help="Model name  [default: the first of /v1/models]")
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice([*SCENARIOS, "all"]),
    help="A ready-made workload; several are run one after another. Other flags override its numbers.",
)
@_sizes
@click.option("--chat", is_flag=True, help="Use /v1/chat/completions instead of /v1/completions.")
@click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Ask for answers of full length.")
@click.option("--extra-body", default="{}", metavar="JSON", help="Fields to merge into every request.")
@click.option("--seed", type=int, help="Of the prompts  [default: random, so that no earlier run has warmed a cache]")
@click.option("--timeout", default=600.0, show_default=True, help="Seconds to wait for the next bytes of an answer.")
@click.option("--json", "json_file", metavar="FILE", help='Write the numbers as JSON; "-": to standard output.')
@click.option("--overhead", is_flag=True, help="Measure what telemetry costs, on two servers of its own; see below.")
@click.option("--rounds", type=click.IntRange(1), default=10, show_default=True, help="Rounds of --overhead.")
@click.argument("server_flags", nargs=-1, metavar="[-- SERVER_FLAGS]")
def command(
    url: str,
    model: str,
    scenarios: Sequence[str],
    chat: bool,
    ignore_eos: bool,
    extra_body: str,
    seed: int | None,
    api_key: str,
    timeout: float,
    json_file: str | None,
    overhead: bool,
    rounds: int,
    server_flags: Sequence[str],
    **sizes: int | None,
) -> int:
    """Put load on any OpenAI-compatible server and measure it: TTFT, ITL, TPOT, end-to-end latency, throughput.

    A closed loop of streaming, greedy requests. Ctrl-C ends it and shows what was measured until then.
    Exit status 1 when a request failed.

    --overhead starts two servers, one with everything on and one with --telemetry off, puts the same load on them in
    turn (32 at once, then a single stream), and compares their CPU time per token, throughput and latency.
    SERVER_FLAGS go to both: vitrine bench --overhead -- --dtype float32
    """
    given = {name: value for name, value in sizes.items() if value is not None}
    seed = secrets.randbits(32) if seed is None else seed
    started = time.time()
    console = Console(stderr=json_file == "-")
    if overhead:
        cost = _in_loop(_measure_overhead(given, server_flags, rounds, seed, api_key), "vitrine bench --overhead")
        bench_overhead.report(cost, console)
        if json_file:
            _write(json_file, {"started_ts": started, "seed": seed, **bench_overhead.as_json(cost)})
        return 0
    if server_flags:
        raise click.UsageError(f"unexpected argument {server_flags[0]!r}: flags for a server go with --overhead")
    target = Target(
        url=url, model=model, chat=chat, ignore_eos=ignore_eos, extra_body=_object(extra_body), timeout_s=timeout
    )
    running = _run(target, _workloads(scenarios, given), seed, api_key, console)
    target, summaries = _in_loop(running, target.base)
    if json_file:
        report = {"started_ts": started, "target": target, "seed": seed, "runs": summaries}
        _write(json_file, report | {"definitions": DEFINITIONS})
    return _status(summaries)


def _in_loop(work: Coroutine[Any, Any, _T], what: str) -> _T:
    """Run to its end, in uvloop. Raises CommandFailedError."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(work)
        except RequestError as e:
            raise CommandFailedError(f"{what}: {e} ({e.kind})") from e


async def _measure_overhead(
    sizes: dict[str, int], flags: Sequence[str], rounds: int, seed: int, api_key: str
) -> Overhead:
    return await bench_overhead.run(sizes, flags, rounds, seed, api_key, _stop_on_interrupt())


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise click.BadParameter(f"not valid JSON: {e}", param_hint="--extra-body") from e
    if not isinstance(value, dict):
        raise click.BadParameter("must be a JSON object", param_hint="--extra-body")
    return value


def _workloads(scenarios: Sequence[str], sizes: dict[str, int]) -> list[Workload]:
    names = list(SCENARIOS) if "all" in scenarios else scenarios
    chosen = [SCENARIOS[name] for name in dict.fromkeys(names)] or [_DEFAULT]
    return [msgspec.structs.replace(workload, **sizes) for workload in chosen]


async def _run(
    target: Target, workloads: list[Workload], seed: int, api_key: str, console: Console
) -> tuple[Target, list[Summary]]:
    """Run one workload after another; returns the target, its model filled in, and the numbers."""
    stop = _stop_on_interrupt()
    summaries: list[Summary] = []
    async with http_client(target, max(w.concurrency for w in workloads), api_key) as http:
        with LiveProgress(Console(stderr=True)) as progress:
            target = msgspec.structs.replace(target, model=await Client(target, http).choose_model())
            client = Client(target, http, progress.on_events)
            for workload in workloads:
                progress.begin(workload)
                summaries.append(summarize(await measure(client, workload, seed, stop, progress.on_result)))
                if stop.is_set():
                    break
    for summary in summaries:
        _show(summary, console)
    return target, summaries


def _stop_on_interrupt() -> asyncio.Event:
    """An event that the first Ctrl-C sets; the second ends the program at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    return stop


def _show(summary: Summary, console: Console) -> None:
    console.print(Text(headline(summary), style="bold"))
    show(latency_table(summary), console)
    for line in totals(summary):
        console.print(Text(plain(line)))
    console.print()


def _write(file: str, report: dict[str, Any]) -> None:
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    if file == "-":
        click.echo(text)
        return
    try:
        Path(file).write_bytes(text + b"\n")
    except OSError as e:
        raise CommandFailedError(f"cannot write {file}: {e.strerror}") from e


def _status(summaries: list[Summary]) -> int:
    if any(summary.interrupted for summary in summaries):
        return _INTERRUPTED
    return 1 if any(summary.failed for summary in summaries) else 0

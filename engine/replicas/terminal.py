"""What ``vitrine serve`` prints: a line per part that comes up, then where to go and what to try."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from engine import __version__
from engine.config import Config


class Terminal:
    """Progress and news for the person who started the system. Errors go to standard error."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def headline(self, model: str, config: Config) -> None:
        """The first line."""
        self._out.print(f"[bold]vitrine[/bold] {__version__}  {model}  {config.dtype}", markup=True)

    def step(self, text: str) -> None:
        """Something is going on."""
        self._line("·", "cyan", text)

    def done(self, name: str, text: str) -> None:
        """A part is ready."""
        self._line("✓", "green", f"{name:<11} {text}")

    def warn(self, text: str) -> None:
        """Something failed and is being mended."""
        self._line("!", "yellow", text)

    def error(self, text: str) -> None:
        """The one clear line before a non-zero exit."""
        self._err.print(Text("vitrine: ", "bold red") + Text(text))

    def serving(self, config: Config, model: str, seconds: float) -> None:
        """Everything is ready."""
        api, dashboard = url(config.host, config.port), url(config.host, config.dashboard_port)
        key = ' -H "Authorization: Bearer $VITRINE_API_KEY"' if config.api_key else ""
        question = '{"role": "user", "content": "What is the capital of France?"}'
        body = f'{{"model": "{model}", "temperature": 0, "messages": [{question}]}}'
        self._out.print()
        self._out.print(Text(f"ready in {seconds:.1f} s", "bold"))
        self._out.print(Text("  API        ") + Text(f"{api}/v1", "cyan"))
        self._out.print(Text("  Dashboard  ") + Text(dashboard, "cyan"))
        self._out.print(Text("  Try        ") + Text(f"curl {api}/v1/chat/completions{key} \\"))
        self._out.print(Text("               -H 'Content-Type: application/json' \\"))
        self._out.print(Text(f"               -d '{body}'"))
        self._out.print(Text("  Ctrl-C drains and stops; a second one stops at once", "dim"))
        self._out.print()
        sys.stdout.flush()

    def stopped(self, data: Path) -> None:
        """The last line."""
        self.step(f"stopped; what was recorded is in {data}")

    def _line(self, mark: str, style: str, text: str) -> None:
        self._out.print(Text(f"{mark} ", style) + Text(text))
        sys.stdout.flush()


def url(host: str, port: int) -> str:
    """Where a person would go; an address that stands for all interfaces is shown as the local one."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"

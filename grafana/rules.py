"""Prometheus' rules: what they are, and how they are written down."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from grafana.promql import Expr


class Recording(msgspec.Struct, frozen=True):
    """A series that Prometheus computes and keeps under `name`."""

    name: str
    expr: Expr

    def lines(self) -> list[str]:
        """The rule as YAML."""
        return [f"- record: {self.name}", *_expr(self.expr.text)]


class Condition(msgspec.Struct, frozen=True):
    """`expr` compared with a number."""

    expr: Expr
    compare: str  # PromQL's operator
    bound: float

    def text(self) -> str:
        """As PromQL."""
        return f"{self.expr.text} {self.compare} {self.bound:g}"


class Alert(msgspec.Struct, frozen=True):
    """Fires when all conditions of one of `any_of` hold for as long as `lasting`.

    ``severity`` is page (somebody must act now) or ticket (somebody must act in the next days). ``summary`` says what
    is wrong, ``advice`` what to do; in both ``{{ $value }}`` is the first condition's value. ``dashboard`` is the page
    that shows it.
    """

    name: str
    any_of: tuple[tuple[Condition, ...], ...]
    lasting: str
    severity: str
    summary: str
    advice: str
    dashboard: str

    @property
    def conditions(self) -> list[Condition]:
        """All of them."""
        return [condition for together in self.any_of for condition in together]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the alert's series."""
        return self.conditions[0].expr.labels

    def lines(self, grafana_url: str) -> list[str]:
        """The rule as YAML."""
        every = ["\nand\n".join(condition.text() for condition in together) for together in self.any_of]
        expression = (
            every[0] if len(every) == 1 else "\nor\n".join(f"(\n{textwrap.indent(one, '  ')}\n)" for one in every)
        )
        return [
            f"- alert: {self.name}",
            *_expr(expression),
            f"  for: {self.lasting}",
            "  labels:",
            f"    severity: {self.severity}",
            "  annotations:",
            f"    summary: {_quoted(self.summary)}",
            f"    description: {_quoted(self.advice)}",
            f"    dashboard: {_quoted(self._link(grafana_url))}",
        ]

    def _link(self, grafana_url: str) -> str:
        chosen = "&".join(
            f"var-{label}={{{{ $labels.{label} }}}}" for label in self.labels if label in ("model", "replica")
        )
        return f"{grafana_url}/d/vitrine-{self.dashboard}" + (f"?{chosen}" if chosen else "")


def group(name: str, rules: Iterable[Sequence[str]]) -> str:
    """A rule file of one group."""
    indented = (textwrap.indent("\n".join(lines), "      ") for lines in rules)
    return f"groups:\n  - name: {name}\n    rules:\n" + "\n\n".join(indented) + "\n"


def _expr(text: str) -> list[str]:
    return ["  expr: |-", *textwrap.indent(text, "    ").splitlines()]


def _quoted(text: str) -> str:
    """A JSON string is a YAML string too."""
    return json.dumps(text, ensure_ascii=False)

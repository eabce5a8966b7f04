"""``python -m grafana.generate``: writes dashboards, rules and the page of metrics, from the metric table.

``--grafana-url`` is where the alerts' links lead to.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from grafana import alerts, metrics_page, model, objectives
from grafana.boards import engine, replicas, requests, stages
from grafana.panels import Dashboard
from grafana.rules import group

ROOT = Path(__file__).parents[1]
GRAFANA_URL = "http://127.0.0.1:3000"
_HEADER = "# Made by: python -m grafana.generate\n"


def boards() -> list[Dashboard]:
    """All dashboards."""
    return [engine.board(), requests.board(), stages.board(), replicas.board()]


def files(grafana_url: str = GRAFANA_URL) -> dict[str, str]:
    """Path (from the repository's root) and content of every file that is made."""
    pages = boards()
    uids = {page.title: page.uid for page in pages}
    made = {f"grafana/dashboards/{page.name}.json": _json(model.dashboard(page, uids)) for page in pages}
    recording = group("vitrine-objectives", (rule.lines() for rule in objectives.recordings()))
    alerting = group("vitrine-alerts", (a.lines(grafana_url) for a in [*objectives.alerts(), *alerts.alerts()]))
    rules = {"recording": recording, "alerts": alerting}
    made["deploy/prometheus/METRICS.md"] = metrics_page.text()
    return made | {f"deploy/prometheus/rules/{name}.yml": _HEADER + text for name, text in rules.items()}


def _json(page: model.Json) -> str:
    return json.dumps(page, indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all files."""
    parser = argparse.ArgumentParser(prog="python -m grafana.generate", description=__doc__)
    parser.add_argument("--grafana-url", default=GRAFANA_URL, help="where the alerts' links lead to [%(default)s]")
    for path, text in files(parser.parse_args().grafana_url).items():
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()

from __future__ import annotations

import json
import re

import pytest

from grafana import colours, generate, model, objectives
from grafana.panels import Panel, Row
from telemetry.events import Stage
from telemetry.metric import Kind
from telemetry.metric_table import BY_NAME

BOARDS = {board.name: board for board in generate.boards()}


def pages() -> dict[str, dict]:
    return {name: json.loads((generate.ROOT / f"grafana/dashboards/{name}.json").read_text()) for name in BOARDS}


def panels() -> list[Panel]:
    return [panel for board in BOARDS.values() for row in board.rows for panel in row.panels]


@pytest.mark.parametrize("path", sorted(generate.files()))
def test_what_is_committed_is_what_is_generated(path):
    committed = (generate.ROOT / path).read_text()
    assert committed == generate.files()[path], f"{path} is out of date: run python -m grafana.generate"


def test_no_other_dashboard_or_rule_lies_around():
    folders = ("grafana/dashboards", "deploy/prometheus/rules")
    found = {str(f.relative_to(generate.ROOT)) for folder in folders for f in (generate.ROOT / folder).iterdir()}
    assert found == {path for path in generate.files() if path.startswith(folders)}


def test_every_metric_of_the_table_is_on_a_panel():
    assert {name for panel in panels() for t in panel.targets for name in t.expr.metrics} == set(BY_NAME)


def test_histograms_have_p50_p90_and_p99_somewhere():
    texts = [target.expr.text for panel in panels() for target in panel.targets]
    for name in (name for name, metric in BY_NAME.items() if metric.kind is Kind.HISTOGRAM):
        for share in ("0.5", "0.9", "0.99"):
            assert any(f"histogram_quantile({share}, " in text and name in text for text in texts), (name, share)


def test_names_in_expressions_are_metrics_of_the_table_or_recording_rules():
    recorded = {rule.name for rule in objectives.recordings()}
    for panel in panels():
        for target in panel.targets:
            for name in re.findall(r"\b(?:gen_ai_server|vitrine|process|model:vitrine)_\w+(?::\w+)?", target.expr.text):
                bare = re.sub(r"_(bucket|count|sum)$", "", name)
                assert name in BY_NAME or bare in BY_NAME or name in recorded, name


def test_panels_do_not_overlap_and_fit_the_page():
    for page in pages().values():
        taken: set[tuple[int, int]] = set()
        for panel in page["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
            assert not taken & cells and place["x"] + place["w"] <= 24, panel["title"]
            taken |= cells


def test_a_panel_that_does_not_fit_begins_a_new_line():
    row = Row("r", tuple(Panel(str(i), "s", (), width=10, height=height) for i, height in enumerate((8, 4, 4))))
    assert [(x, y) for _, x, y in model._flow(row, 1)] == [(0, 1), (10, 1), (0, 9)]


def test_panels_have_unit_description_and_unique_ids():
    for page in pages().values():
        ids = [panel["id"] for panel in page["panels"]]
        assert len(ids) == len(set(ids))
        for panel in (p for p in page["panels"] if p["type"] != "row"):
            assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_the_description_is_the_metrics_help():
    panel = next(p for p in panels() if p.title == "Open file descriptors")
    assert model.description(panel) == BY_NAME["process_open_fds"].help


def test_variables_links_and_uids():
    for name, page in pages().items():
        assert page["uid"] == f"vitrine-{name}" and page["schemaVersion"] == 42
        variables = {variable["name"]: variable for variable in page["templating"]["list"]}
        assert set(variables) == {"datasource", "model", "replica"}
        assert variables["replica"]["allValue"] == ".*"
        assert {link["url"] for link in page["links"]} == {f"/d/vitrine-{n}" for n in BOARDS if n != name}


def test_stages_have_the_colours_of_the_stylesheet():
    css = colours.STYLESHEET.read_text()
    of_stages = colours.of_stages()
    assert set(of_stages) == set(Stage)
    assert all(f"--{stage}: {colour};" in css for stage, colour in of_stages.items())
    page = pages()["stages"]
    utilisation = next(p for p in page["panels"] if p["title"] == "Utilisation")
    drawn = {
        o["matcher"]["options"]: o["properties"][0]["value"]["fixedColor"]
        for o in utilisation["fieldConfig"]["overrides"]
    }
    assert drawn == of_stages


def test_parts_of_one_stage_differ_by_their_shade():
    parts = colours.of_parts()
    assert parts["prefill"] == colours.of_stages()["runner"] == "#0f8567"
    assert parts["decode"] == "#7bbcab"
    assert len(set(parts.values())) == len(parts)


def test_one_replica_chosen_still_shows_the_processes_of_none():
    texts = [t.expr.text for row in BOARDS["stages"].rows for panel in row.panels for t in panel.targets]
    by_process = [text for text in texts if "process_" in text or "busy" in text]
    assert by_process and all('replica=~"$replica|"' in text for text in by_process)


def test_the_provisioned_sources_are_the_ones_that_are_meant():
    folder = generate.ROOT / "grafana" / "provisioning"
    sources = (folder / "datasources" / "vitrine.yml").read_text()
    assert "uid: vitrine-jaeger\n" in sources and "datasourceUid: vitrine-jaeger\n" in sources
    scraped = (generate.ROOT / "deploy/prometheus/prometheus.yml").read_text()
    assert re.search(r"timeInterval: (\w+)", sources)[1] == re.search(r"scrape_interval: (\w+)", scraped)[1]
    assert "path: ${VITRINE_DASHBOARDS}\n" in (folder / "dashboards" / "vitrine.yml").read_text()


def test_links_of_alerts_lead_where_they_are_told_to():
    rules = generate.files("https://grafana.example")["deploy/prometheus/rules/alerts.yml"]
    links = re.findall(r'dashboard: "(.*)"', rules)
    assert links and all(link.startswith("https://grafana.example/d/vitrine-") for link in links)
    assert {re.search(r"/d/vitrine-(\w+)", link)[1] for link in links} <= set(BOARDS)

"""The configurations of Jaeger and of the OpenTelemetry Collector, against what Vitrine sends and serves."""

from __future__ import annotations

import json
import re

import yaml

from dashboard.app import create_app
from dashboard.pages.request import trace_url
from engine.config import Config
from grafana.generate import ROOT
from telemetry.export import make_exporter
from tests.telemetry.test_assembly import assemble, only
from tests.telemetry.test_spans import spans_of, usual_story

JAEGER = ROOT / "deploy/jaeger"
UI = json.loads((JAEGER / "ui.json").read_text())
CONFIG = yaml.safe_load((JAEGER / "config.yaml").read_text())
COLLECTOR = yaml.safe_load((ROOT / "deploy/otel-collector/config.yaml").read_text())


def test_links_of_spans_are_made_from_attributes_that_spans_have():
    attributes = [set(span.attributes) for span in spans_of(only(assemble(usual_story())))]
    for pattern in UI["linkPatterns"]:
        used = set(re.findall(r"#\{([^}]+)\}", pattern["url"] + pattern["text"]))
        if pattern["type"] == "tags":
            assert pattern["key"] in used and all(used <= one for one in attributes)
        else:
            assert used == {"traceID"}


def test_links_lead_to_the_dashboard_where_it_is_by_default():
    for pattern in UI["linkPatterns"]:
        assert pattern["url"].startswith(f"http://127.0.0.1:{Config().dashboard_port}/requests")


def test_pages_that_are_linked_to_exist(tmp_path):
    from starlette.testclient import TestClient

    from dashboard.hub import Hub
    from tests.dashboard.factories import full_world

    world = full_world(tmp_path)
    client = TestClient(create_app(world.sources(), Hub(tick_s=0.2)), base_url="http://127.0.0.1")
    by_id, by_trace = (pattern["url"].partition(":8001")[2] for pattern in UI["linkPatterns"])
    assert client.get(by_id.replace("#{vitrine.request_id}", "req-slow01")).status_code == 200
    assert client.get(by_trace.replace("#{traceID}", "0" * 31 + "1")).status_code == 200


def test_jaegers_pipeline_names_only_what_is_configured():
    for config in (CONFIG, COLLECTOR):
        (pipeline,) = config["service"]["pipelines"].values()
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
        assert set(config["service"].get("extensions", ())) == set(config.get("extensions", {}))
    backends = CONFIG["extensions"]["jaeger_storage"]["backends"]
    assert CONFIG["exporters"]["jaeger_storage_exporter"]["trace_storage"] in backends
    assert CONFIG["extensions"]["jaeger_query"]["storage"]["traces"] in backends
    assert COLLECTOR["service"]["pipelines"]["traces"]["processors"][0] == "memory_limiter"


def test_the_commands_in_the_files_name_endpoints_that_are_understood():
    texts = [path.read_text() for path in (JAEGER / "config.yaml", ROOT / "deploy/otel-collector/config.yaml")]
    for text in texts:
        endpoint = re.search(r"--otlp-endpoint (\S+)", text)[1]
        exporter = make_exporter(endpoint)
        assert exporter is not None
        exporter.shutdown()


def test_a_trace_is_linked_to_where_jaeger_is():
    assert trace_url("http://jaeger:16686/", "ab" * 16) == f"http://jaeger:16686/trace/{'ab' * 16}"
    assert trace_url("", "ab" * 16) == ""

"""The page of metrics as both ports give it: the names, labels and values that others rely on."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from telemetry import schema
from telemetry.events import Stage
from telemetry.metric_table import BY_NAME
from tests.e2e.clients import answer, at_once
from tests.e2e.scrapes import check_growth, scraped
from tests.e2e.served import Served
from tests.load.scrape import OPENMETRICS
from tests.telemetry.metric_contract import CONTRACT, LABEL_VALUES, STANDARD, WITHOUT_SERIES


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    with Served(tmp_path_factory.mktemp("names"), "--device", "simulated") as served:
        yield served


def test_every_name_that_others_rely_on_is_exported_by_both_ports_with_its_labels(shared):
    answer(shared, prompt="Hi", max_tokens=2)
    for url in (shared.url, shared.dashboard_url):
        response = httpx.get(f"{url}/metrics", headers={"accept": OPENMETRICS}, timeout=10)
        assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        families = {family.name: family for family in parse_openmetrics(response.text)}
        for name, (kind, labels) in CONTRACT.items():
            family = families.pop(name.removesuffix("_total"))
            assert (family.type, family.documentation) == (kind, BY_NAME[name].help)
            seen = {frozenset(sample.labels) - {"le"} for sample in family.samples}
            assert seen == {frozenset(labels)} or (name in WITHOUT_SERIES and not seen), name
        assert families and all(name.startswith(STANDARD) for name in families), families.keys()
        assert all(set(s.labels) == {"replica", "stage"} for family in families.values() for s in family.samples)


def test_label_values_that_others_rely_on_are_there_from_the_start(simulated):
    values = scraped(simulated)
    for (name, label), expected in LABEL_VALUES.items():
        found = {dict(labels)[label] for sample, labels in values if sample in (name, f"{name}_count")}
        assert found == expected, name


def test_latencies_lead_to_traces_that_the_store_knows(simulated):
    answer(simulated, prompt="Count:", max_tokens=8, ignore_eos=True)

    def exemplars() -> dict[str, set[str]]:
        text = httpx.get(f"{simulated.url}/metrics", headers={"accept": OPENMETRICS}).text
        samples = [(family.name, s.exemplar) for family in parse_openmetrics(text) for s in family.samples]
        return {name: {e.labels["trace_id"] for n, e in samples if n == name and e} for name, e in samples if e}

    latencies = {
        "gen_ai_server_request_duration_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "gen_ai_server_time_per_output_token_seconds",
        "vitrine_inter_token_latency_seconds",
        "vitrine_stage_duration_seconds",
        "vitrine_step_duration_seconds",
    }
    simulated.eventually(lambda: latencies <= set(exemplars()), 10, "exemplars on each of them")
    named = set().union(*exemplars().values())
    simulated.eventually(
        lambda: named <= {row["trace_id"] for row in simulated.rows(schema.requests)}, 10, "they are stored"
    )


def test_metrics_are_503_while_telemetry_is_away_and_come_back_with_their_counts(serve):
    served = serve("--device", "simulated")
    answer(served, prompt="Hi", max_tokens=3)
    served.eventually(lambda: served.metric("vitrine_requests_total") == 1, 10, "it is counted")
    before = scraped(served)
    telemetry = served.pid(Stage.TELEMETRY)
    os.kill(telemetry, signal.SIGSTOP)
    urls = (f"{served.url}/metrics", f"{served.dashboard_url}/metrics")
    assert at_once(lambda url: httpx.get(url, timeout=10).status_code, urls) == [503, 503]
    assert answer(served, prompt="Hi", max_tokens=3)["usage"]["completion_tokens"] == 3
    os.kill(telemetry, signal.SIGKILL)
    served.eventually(lambda: served.status("/metrics") == 200, 20, "another telemetry process")
    served.eventually(lambda: served.metric("vitrine_requests_total") == 2, 10, "both are counted")
    check_growth(before, scraped(served))

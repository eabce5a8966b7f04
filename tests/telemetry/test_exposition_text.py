"""What is written is what prometheus_client, its parsers and promtool take for right."""

import subprocess
import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from telemetry.events import ReplicaState
from telemetry.exposition import Exposition
from telemetry.gauges import GaugeBoard
from telemetry.metric import Kind
from telemetry.metric_table import BY_NAME
from telemetry.metrics import Metrics
from tests.programs import find_program
from tests.telemetry.factories import make_info
from tests.telemetry.test_metrics import OPENMETRICS, run_requests

ACCEPTS = ("", "text/plain", OPENMETRICS, "application/openmetrics-text; version=0.0.1; q=0.5, text/plain", "nonsense")
HOSTILE = 'a "model"\\ of two\nlines {le="1"}'


class Reference:
    """The same numbers as a collector of prometheus_client."""

    def __init__(self, exposition):
        self.exposition = exposition

    def collect(self):
        for metric, series in self.exposition.collect():
            yield self.family(metric, series)

    def family(self, metric, series):
        kinds = {
            Kind.COUNTER: CounterMetricFamily,
            Kind.GAUGE: GaugeMetricFamily,
            Kind.HISTOGRAM: HistogramMetricFamily,
        }
        family = kinds[metric.kind](metric.name, metric.help, labels=(*metric.common, *metric.labels))
        for labels, value in series.items():
            if metric.kind is Kind.HISTOGRAM:
                family.add_metric(labels, buckets=self.buckets(metric, value), sum_value=value.total)
            else:
                family.add_metric(labels, value)
        return family

    @staticmethod
    def buckets(metric, histogram):
        made, running = [], 0
        for i, bound in enumerate([*map(floatToGoString, metric.buckets), "+Inf"]):
            running += histogram.counts[i]
            bucket = (bound, running)
            if e := histogram.exemplars.get(i):
                bucket = (*bucket, Exemplar({"trace_id": e.trace_id}, e.value, e.ts))
            made.append(bucket)
        return made


@pytest.fixture(params=["tiny", HOSTILE])
def exposition(request, tmp_path):
    metrics = Metrics(request.param)
    metrics.add_replica("r0")
    run_requests(metrics, 30)
    exposition = Exposition(metrics, GaugeBoard(tmp_path), request.param)
    exposition.replicas["r0"] = (ReplicaState.READY, make_info(model=request.param))
    exposition.events["metrics"] = 12_345_678
    return exposition


@pytest.mark.parametrize("accept", ACCEPTS)
def test_it_is_what_prometheus_client_writes(exposition, accept):
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Reference(exposition))
    encode, content_type = choose_encoder(accept)
    assert exposition.render(accept) == (content_type, encode(registry))


def test_openmetrics_parser_takes_it(exposition):
    families = {family.name: family for family in parse_openmetrics(exposition.render(OPENMETRICS)[1].decode())}
    assert set(families) == {name.removesuffix("_total") for name in BY_NAME}


def test_promtool_finds_nothing_wrong(exposition):
    promtool = find_program("promtool", package="prometheus")
    body = exposition.render("")[1]
    checked = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, timeout=30)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_page_made_while_facts_come_in_is_of_one_moment(tmp_path):
    """Buckets, counts and what is counted beside them agree on every page."""
    metrics = Metrics("tiny")
    exposition = Exposition(metrics, GaugeBoard(tmp_path), "tiny")

    def add():
        while not enough.is_set():
            with exposition.changing:
                run_requests(metrics, 1)

    enough, adding = threading.Event(), threading.Thread(target=add)
    adding.start()
    for _ in range(50):
        values = {metric.name: series for metric, series in exposition.collect()}
        ended = sum(values["vitrine_requests_total"].values())
        e2e = values["gen_ai_server_request_duration_seconds"].values()
        sizes = values["vitrine_request_generation_tokens"].values()
        assert ended == sum(sum(h.counts) for h in e2e) == sum(sum(h.counts) for h in sizes)
    enough.set()
    adding.join()
    assert ended > 0

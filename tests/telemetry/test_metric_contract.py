import pytest

from telemetry import metric_labels
from telemetry.events import FinishReason, ReplicaState, StepKind, WaitReason
from telemetry.metric import Kind
from telemetry.metric_table import BY_NAME, FACTS, LIVE
from tests.telemetry.metric_contract import CONTRACT, CONVENTION_BUCKETS, LABEL_VALUES, STANDARD


@pytest.mark.parametrize("name", CONTRACT)
def test_every_name_that_others_rely_on_is_in_the_table_with_its_type_and_labels(name):
    kind, labels = CONTRACT[name]
    metric = BY_NAME[name]
    assert metric.kind == kind
    assert {*metric.common, *metric.labels} == set(labels)
    assert len(metric.common) + len(metric.labels) == len(labels)


def test_the_table_has_no_name_besides_and_none_twice():
    assert {name for name in BY_NAME if not name.startswith(STANDARD)} == set(CONTRACT)
    assert len(FACTS) + len(LIVE) == len(BY_NAME)


def test_each_help_is_a_sentence_of_its_own():
    helps = [metric.help for metric in BY_NAME.values()]
    assert len(helps) == len(set(helps))
    assert all(text.endswith(".") and "\n" not in text and "|" not in text for text in helps)


def test_names_end_as_their_type_wants():
    for name, metric in BY_NAME.items():
        assert name.endswith("_total") == (metric.kind is Kind.COUNTER), name
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), name


@pytest.mark.parametrize("name", CONVENTION_BUCKETS)
def test_buckets_of_the_convention_are_among_ours(name):
    assert set(CONVENTION_BUCKETS[name]) <= set(BY_NAME[name].buckets)


def test_end_to_end_is_refined_below_ten_milliseconds_and_itl_begins_at_half_of_one():
    assert len([b for b in BY_NAME["gen_ai_server_request_duration_seconds"].buckets if b < 0.01]) >= 3
    assert BY_NAME["vitrine_inter_token_latency_seconds"].buckets[0] == 0.0005
    assert all(metric.buckets == tuple(sorted(set(metric.buckets))) for metric in BY_NAME.values())


@pytest.mark.parametrize(("name", "label"), LABEL_VALUES)
def test_label_values_are_those_that_others_rely_on(name, label):
    assert set(BY_NAME[name].values[label]) == LABEL_VALUES[name, label]


@pytest.mark.parametrize(
    ("meanings", "values"),
    [
        (metric_labels.WAIT_REASONS, WaitReason),
        (metric_labels.FINISH_REASONS, FinishReason),
        (metric_labels.STEP_KINDS, StepKind),
        (metric_labels.REPLICA_STATES, ReplicaState),
    ],
)
def test_every_value_that_records_can_have_is_explained(meanings, values):
    assert set(meanings) == {str(value) for value in values}

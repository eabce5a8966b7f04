import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind, StatusCode

from telemetry import span_resources
from telemetry.events import FinishReason, Stage, WaitReason
from telemetry.facts import Scope
from telemetry.sampling import Objectives, SlowSteps, is_exported, is_slow
from telemetry.span_ids import server_span_id
from telemetry.span_resources import MAX_LINKS, Resources
from telemetry.span_steps import StepTraces, step_spans
from telemetry.spans import RequestSpans
from tests.telemetry.factories import GATEWAY, WALL_NS, Story, replica_owner
from tests.telemetry.test_assembly import Assembly, abort, assemble, only

TRACE = "0af7651916cd43dd8448eb211c80319c"
LOOSE = Objectives(ttft_s=60, itl_s=60)


def spans_of(facts, step_ratio=0.0):
    resources = Resources()
    resources.know(GATEWAY)
    for stage in (Stage.TOKENIZER, Stage.SCHEDULER, Stage.RUNNER, Stage.DETOKENIZER):
        resources.know(replica_owner(stage))
    return RequestSpans(facts, resources, StepTraces(step_ratio), ("127.0.0.1", 8000)).make()


def by_name(spans):
    found = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    return found


def check_family(spans):
    """One trace; every parent exists; every child lies within its parent."""
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    root = spans[0]
    for span in spans:
        assert span.context.trace_id == root.context.trace_id
        assert span.end_time >= span.start_time
        if span is not root:
            parent = by_id[span.parent.span_id]
            assert parent.start_time <= span.start_time
            assert span.end_time <= parent.end_time
    encode_spans(spans)


def usual_story(**received):
    story = Story()
    story.complete_request(**received)
    return story


def test_a_usual_request_has_all_its_stages_as_services_of_their_own():
    spans = spans_of(only(assemble(usual_story())))
    check_family(spans)
    services = {span.name: span.resource.attributes["service.name"] for span in spans}
    assert services == {
        "POST /v1/completions": "vitrine-gateway",
        "route": "vitrine-gateway",
        "tokenize": "vitrine-tokenizer",
        "queue": "vitrine-scheduler",
        "prefill": "vitrine-runner",
        "prefill chunk": "vitrine-runner",
        "decode": "vitrine-runner",
        "detokenize": "vitrine-detokenizer",
    }
    assert spans[0].resource.attributes["service.instance.id"] == "gateway/101"
    assert by_name(spans)["queue"][0].resource.attributes["service.instance.id"] == "r0/scheduler/200"
    assert all(span.status.status_code is StatusCode.UNSET for span in spans)


def test_times_are_wall_clock_by_the_offset_of_the_request():
    spans = by_name(spans_of(only(assemble(usual_story()))))
    root = spans["POST /v1/completions"][0]
    assert root.start_time == WALL_NS
    assert root.end_time == WALL_NS + 61_000_000
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    queue, decode = spans["queue"][0], spans["decode"][0]
    assert (queue.start_time - WALL_NS, queue.end_time - WALL_NS) == (4_000_000, 10_000_000)
    assert (decode.start_time - WALL_NS, decode.end_time - WALL_NS) == (30_000_000, 50_000_000)


def test_the_callers_context_is_the_parent():
    story = usual_story(trace_id=TRACE, parent_span_id="b7ad6b7169203331", trace_flags=1, tracestate="a=1")
    spans = spans_of(only(assemble(story)))
    root = spans[0]
    assert f"{root.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"
    assert root.context.span_id == server_span_id("req-1")
    assert root.context.trace_state.to_header() == "a=1"


def test_gen_ai_attributes():
    params = {"max_tokens": 5, "temperature": 0.5, "top_k": 3, "stop": "END", "n": 2, "seed": None}
    attributes = spans_of(only(assemble(usual_story(params=params))))[0].attributes
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "vitrine",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.stop_sequences": ["END"],
        "gen_ai.request.choice.count": 2,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
        "server.port": 8000,
        "vitrine.request_id": "req-1",
        "vitrine.replica": "r0",
    }
    assert expected.items() <= attributes.items()
    assert "error.type" not in attributes
    assert "gen_ai.request.seed" not in attributes


def test_decode_says_its_itl_and_queue_its_reasons():
    spans = by_name(spans_of(only(assemble(usual_story()))))
    assert spans["decode"][0].attributes["vitrine.decode.itl_p50_s"] == pytest.approx(0.010)
    assert spans["decode"][0].attributes["vitrine.decode.tokens"] == 2
    assert [(e.name, e.attributes["vitrine.wait.reason"]) for e in spans["queue"][0].events] == [
        ("waiting", "kv_blocks")
    ]


def test_each_prefill_chunk_is_a_child():
    story = Story()
    story.received()
    story.routed()
    story.tokenized(prompts=[list(range(100))])
    seq = story.queued(prompt_tokens=100)
    story.admitted(seq, at=10, cached=16)
    story.step(20, (seq, 16, 64, -1))
    story.step(30, (seq, 80, 20, 11))
    story.ended(seq, tokens=1)
    story.finished(outputs=[1])
    story.sent()
    spans = spans_of(only(assemble(story)))
    check_family(spans)
    found = by_name(spans)
    assert found["prefill"][0].attributes["vitrine.prefill.cached_tokens"] == 16
    assert found["prefill"][0].attributes["vitrine.prefill.computed_tokens"] == 84
    assert [c.parent.span_id for c in found["prefill chunk"]] == [found["prefill"][0].context.span_id] * 2
    assert "decode" not in found


def test_preemption_and_slow_tokens_are_events_of_decode():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [1, 2, 3, 4], first_at=30, gap=2)
    story.preempted(seq, at=40)
    story.admitted(seq, at=80, attempt=1)
    story.step(90, (seq, 0, 8, 5))
    story.ended(seq, at=91, tokens=5, preemptions=1)
    story.finished(at=95, outputs=[5])
    story.sent(at=96)
    spans = spans_of(only(assemble(story)))
    check_family(spans)
    events = [event.name for event in by_name(spans)["decode"][0].events]
    assert events == ["preempted", "resumed", "slow token"]


def refused():
    story = Story()
    story.received(num_sequences=0)
    story.finished(at=1, reason=FinishReason.ERROR, status=400, error_type="invalid_request_error", error_message="no")
    story.sent(at=2)
    return story


def aborted_while_queued():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.waits(seq, 5, WaitReason.MAX_RUNNING)
    abort(story, seq)
    return story


def aborted_in_prefill():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued(prompt_tokens=100)
    story.admitted(seq)
    story.step(30, (seq, 0, 64, -1))
    abort(story, seq)
    return story


def aborted_in_decode():
    story = Story()
    story.received()
    story.routed()
    story.tokenized()
    seq = story.queued()
    story.admitted(seq)
    story.generate(seq, [1, 2, 3], first_at=20, gap=5)
    abort(story, seq, delivered=3)
    return story


@pytest.mark.parametrize(
    ("make", "stages", "interrupted"),
    [
        (refused, set(), None),
        (aborted_while_queued, {"route", "tokenize", "queue"}, "queue"),
        (aborted_in_prefill, {"route", "tokenize", "queue", "prefill", "prefill chunk"}, "prefill"),
        (aborted_in_decode, {"route", "tokenize", "queue", "prefill", "prefill chunk", "decode"}, "decode"),
    ],
)
def test_requests_that_did_not_end_well_have_the_spans_as_far_as_they_got(make, stages, interrupted):
    spans = spans_of(only(assemble(make())))
    check_family(spans)
    found = by_name(spans)
    assert set(found) - {"POST /v1/completions"} == stages
    root = spans[0]
    assert root.status.status_code is StatusCode.ERROR
    assert root.attributes["error.type"] in ("invalid_request_error", "abort")
    failed = {span.name for span in spans[1:] if span.status.status_code is StatusCode.ERROR}
    assert failed == ({interrupted} if interrupted else set())


def test_several_sequences_have_spans_of_their_own():
    story = Story()
    story.received(num_sequences=2)
    story.routed()
    story.tokenized()
    for index in range(2):
        seq = story.queued(index=index)
        story.admitted(seq)
        story.generate(seq, [1, 2])
        story.ended(seq, tokens=2)
        story.detokenized(seq, index=index, tokens=2)
    story.finished(outputs=[2, 2])
    story.sent()
    spans = spans_of(only(assemble(story)))
    check_family(spans)
    assert [s.attributes["vitrine.sequence.index"] for s in by_name(spans)["decode"]] == [0, 1]


@pytest.mark.parametrize(
    ("flags", "error", "ratio", "exported"),
    [
        (1, False, 0.0, True),
        (0, False, 1.0, False),
        (0, True, 1.0, False),
        (-1, False, 0.0, False),
        (-1, True, 0.0, True),
        (-1, False, 1.0, True),
    ],
)
def test_who_decides_about_export(flags, error, ratio, exported):
    story = Story()
    if error:
        story.received(trace_flags=flags, num_sequences=0)
        story.finished(at=1, reason=FinishReason.ERROR, status=500, error_type="internal_error")
        story.sent(at=2)
    else:
        story.complete_request(trace_flags=flags)
    assert is_exported(only(assemble(story)), ratio, LOOSE) is exported


def test_the_ratio_is_a_share_of_traces():
    kept = 0
    for i in range(400):
        story = Story()
        story.complete_request(trace_id=f"{i * 0x9E3779B97F4A7C15 % (1 << 64):032x}")
        kept += is_exported(only(assemble(story)), 0.25, LOOSE)
    assert 60 <= kept <= 140


def test_steps_and_requests_link_to_each_other():
    story = usual_story(trace_id=TRACE)
    assembly = Assembly("run")
    for owner, record in story.entries:
        assembly.feed(owner, record)
    steps = assembly.take_steps()
    traces = StepTraces(1.0)
    trace_ids = assembly.trace_ids(["req-1", "unknown"])
    root = traces.context("run", steps[1].scope, steps[1].record.step_id)
    spans = step_spans(steps[1], root, trace_ids, WALL_NS - story.start_ns, Resources())
    check_family(spans)
    assert [s.name for s in spans] == ["step", "schedule", "execute", "sample", "publish"]
    assert [(f"{link.context.trace_id:032x}", link.context.span_id) for link in spans[0].links] == [
        (TRACE, server_span_id("req-1"))
    ]
    request_spans = spans_of(only(assembly.advance(story.ns(100))), step_ratio=1.0)
    linked = {link.context.span_id for span in request_spans for link in span.links}
    assert root.span_id in linked
    assert len(linked) == 3


def test_links_past_the_limit_are_counted():
    story = Story()
    story.complete_request(tokens=tuple(range(MAX_LINKS + 12)))
    spans = by_name(spans_of(only(assemble(story, at=2000)), step_ratio=1.0))
    decode = spans["decode"][0]
    assert len(decode.links) == MAX_LINKS
    assert decode.attributes["vitrine.links_left_out"] == 11


def test_a_share_of_the_steps_is_recorded():
    traces = StepTraces(0.2)
    kept = traces.contexts("run", Scope("r0", 1), range(1000))
    assert 130 <= len(kept) <= 270
    assert StepTraces(0.0).contexts("run", Scope("r0", 1), range(100)) == []


@pytest.mark.parametrize(
    ("objectives", "flags", "exported"),
    [
        (LOOSE, -1, False),
        (Objectives(ttft_s=0.001, itl_s=60), -1, True),
        (Objectives(ttft_s=60, itl_s=0.001), -1, True),
        (Objectives(ttft_s=0.001, itl_s=0.001), 0, False),
    ],
)
def test_what_was_slow_is_kept_unless_the_caller_forbids_it(objectives, flags, exported):
    facts = only(assemble(usual_story(trace_flags=flags)))
    assert is_exported(facts, 0.0, objectives) is exported


def test_one_late_token_of_many_is_not_a_slow_request():
    story = Story()
    story.complete_request(tokens=tuple(range(100)))
    facts = only(assemble(story, at=2000))
    gaps = sorted(facts.sequences[0].gaps_s())
    assert not is_slow(facts, Objectives(ttft_s=60, itl_s=gaps[-1]))
    late = facts.sequences[0].token_times_ns
    late[50:] = [at + 5_000_000_000 for at in late[50:]]
    assert not is_slow(facts, Objectives(ttft_s=60, itl_s=gaps[-1]))  # one gap of 5 s: 1 % of them
    late[:] = [at * 2 for at in late]
    assert is_slow(facts, Objectives(ttft_s=60, itl_s=gaps[-1]))


def test_slow_steps_are_always_recorded_and_linked():
    assembly = Assembly("run")
    story = usual_story()
    for owner, record in story.entries:
        assembly.feed(owner, record)
    steps = assembly.take_steps()
    late = max(steps, key=lambda step: max(step.gaps_s, default=0.0))
    limit = sorted(max(step.gaps_s, default=0.0) for step in steps)[-2]
    traces = StepTraces(0.0, SlowSteps(Objectives(ttft_s=60, itl_s=limit)))
    for step in steps:
        traces.note(step)
    ids = [step.record.step_id for step in steps]
    slow = [step.record.step_id for step in steps if max(step.gaps_s, default=0.0) > limit]
    assert [i for i in ids if traces.context("run", late.scope, i)] == slow
    assert traces.context("another run", late.scope, late.record.step_id) is None


def test_a_step_that_takes_longer_than_a_first_token_may_is_slow_without_any_late_token():
    step = next(iter(steps_of(usual_story())))
    assert not step.gaps_s
    traces = StepTraces(0.0, SlowSteps(Objectives(ttft_s=step.duration_s / 2, itl_s=60)))
    traces.note(step)
    assert traces.context("run", step.scope, step.record.step_id)


def steps_of(story):
    assembly = Assembly("run")
    for owner, record in story.entries:
        assembly.feed(owner, record)
    return assembly.take_steps()


def test_resources_carry_what_the_environment_says_and_keep_the_stages_apart(monkeypatch):
    monkeypatch.setattr(
        span_resources, "_FROM_ENVIRONMENT", Resource({"deployment.environment": "test", "service.name": "mine"})
    )
    attributes = Resources().of(Stage.RUNNER, "r0", 1).attributes
    assert attributes["deployment.environment"] == "test"
    assert attributes["service.name"] == "vitrine-runner"
    assert attributes["service.namespace"] == "vitrine"
    assert attributes["service.version"] and attributes["host.name"]

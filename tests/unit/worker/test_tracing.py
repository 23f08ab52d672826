"""Traces of jobs: what a producer sends, and the spans of a worker."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from shoal.worker import Job, Queue, Worker
from shoal.worker.tracing import inject_trace, trace_jobs


class Tracing:
    """A provider that keeps its spans in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def enqueue(self) -> dict[str, bytes]:
        """Return the headers of a job that a producer enqueues within a span."""
        queue = Queue("images", settings="127.0.0.1:1", add_headers=inject_trace)
        with self.provider.get_tracer("shop").start_as_current_span("order"):
            return dict(queue.make_record("a", None, None, None, None)["headers"])


@pytest.fixture
def tracing() -> Tracing:
    return Tracing()


def test_a_worker_continues_the_trace_of_the_producer(tracing: Tracing) -> None:
    worker = Worker("g")
    worker.middleware(trace_jobs(tracing.provider))
    inside = []

    @worker.handler("images")
    def handle(job: Job) -> None:  # A thread has the span, too.
        inside.append(get_current_span().get_span_context().span_id)
        if job.delivery_count == 2:
            raise KeyError("x")

    headers = tracing.enqueue()
    worker.run_once(handle, "a", headers=headers, key=b"k")
    worker.run_once(handle, "a", headers=headers, delivery_count=2)
    spans = tracing.spans()
    assert {"order", "wait images", "retry images", "process images"} == spans.keys()
    order = spans["order"].context
    assert {span.context.trace_id for span in spans.values()} == {order.trace_id}
    assert {spans[n].parent.span_id for n in spans if n != "order"} == {order.span_id}
    first, second = [
        span for span in tracing.exporter.get_finished_spans() if span.name == "process images"
    ]
    assert inside == [first.context.span_id, second.context.span_id]
    assert first.kind is SpanKind.CONSUMER
    assert {spans[name].kind for name in ("wait images", "retry images")} == {SpanKind.CLIENT}
    groups = {
        s.attributes["messaging.consumer.group.name"] for n, s in spans.items() if n != "order"
    }
    assert groups == {"g"}
    assert first.status.status_code is StatusCode.UNSET
    assert first.attributes["messaging.destination.name"] == "images"
    assert first.attributes["messaging.kafka.message.key"] == "k"
    assert second.status.status_code is StatusCode.ERROR
    assert second.attributes["error.type"] == "KeyError"
    assert second.attributes["shoal.delivery_count"] == 2
    assert [event.name for event in second.events] == ["exception"]


def test_a_batch_is_linked_to_the_traces_of_its_jobs(tracing: Tracing) -> None:
    worker = Worker("g")
    worker.middleware(trace_jobs(tracing.provider))

    @worker.handler("images", batch=10)
    async def handle(jobs: list[Job]) -> None: ...

    worker.run_once(handle, "a", headers=tracing.enqueue())
    spans = tracing.spans()
    batch = spans["process images"]
    assert batch.parent is None
    assert [link.context.trace_id for link in batch.links] == [spans["order"].context.trace_id]
    assert batch.attributes["messaging.batch.message_count"] == 1


def test_a_producer_without_a_span_sends_no_trace() -> None:
    headers: dict[str, bytes] = {}
    inject_trace(headers)
    assert headers == {}


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shoal.worker.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs the module opentelemetry.*'shoal\[tracing\]'"
    ):
        importlib.import_module("shoal.worker.tracing")

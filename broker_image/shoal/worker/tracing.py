"""Traces by OpenTelemetry; install the extra `shoal[tracing]`.

    worker.middleware(trace_jobs())
    queue = Queue("images", add_headers=inject_trace)

A producer sends its trace in the header `traceparent` (W3C Trace Context), and the worker continues
it: a span for the time that the record waited, and one for each run, with the names of the semantic
conventions for messaging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import propagate, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"shoal.worker.tracing needs the module {error.name}, which is not installed. Install it"
        " with `pip install 'shoal[tracing]'`.",
        name=error.name,
    ) from None

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from shoal.worker.jobs import Job
    from shoal.worker.lanes import Call, Middleware

_NAME = "shoal.worker"


def inject_trace(headers: dict[str, bytes]) -> None:
    """Add the current trace to the headers of a job."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    headers.update({name: text.encode() for name, text in carrier.items()})


def trace_jobs(provider: trace.TracerProvider | None = None) -> Middleware:
    """Return a middleware that continues the traces of jobs. A batch is one span, with links to the
    traces of its jobs."""
    tracer = trace.get_tracer(_NAME, tracer_provider=provider)

    async def trace_job(work: Job | list[Job], call: Call) -> Any:
        jobs = work if isinstance(work, list) else [work]
        parents = [_extract(job.headers) for job in jobs]
        for job, parent in zip(jobs, parents, strict=True):
            # A later delivery also waits for its back-off, and for others that failed.
            name = "wait" if job.delivery_count == 1 else "retry"
            begun_ns = job.record.timestamp_ms * 1_000_000
            span = tracer.start_span(
                f"{name} {job.topic}",
                parent,
                SpanKind.CLIENT,
                _describe(job, "receive"),
                start_time=begun_ns,
            )
            span.end()
        attributes = _describe(jobs[0], "process")
        links = []
        if isinstance(work, list):
            attributes["messaging.batch.message_count"] = len(work)
            links = [trace.Link(trace.get_current_span(p).get_span_context()) for p in parents]
        with tracer.start_as_current_span(
            f"process {jobs[0].topic}",
            None if links else parents[0],
            SpanKind.CONSUMER,
            attributes,
            links,
            set_status_on_exception=False,
        ) as span:
            try:
                return await call(work)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
                raise

    return trace_job


def _extract(headers: Mapping[str, bytes | None]) -> Context:
    carrier = {name: (text or b"").decode(errors="replace") for name, text in headers.items()}
    return propagate.extract(carrier)


def _describe(job: Job, operation: str) -> dict[str, Any]:
    """Return the attributes of a span, by the semantic conventions for Kafka."""
    attributes: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.consumer.group.name": job.group,
        "messaging.destination.name": job.topic,
        "messaging.destination.partition.id": str(job.partition),
        "messaging.kafka.offset": job.offset,
        "shoal.delivery_count": job.delivery_count,
    }
    if job.key is not None:
        attributes["messaging.kafka.message.key"] = job.key.decode(errors="replace")
    return attributes

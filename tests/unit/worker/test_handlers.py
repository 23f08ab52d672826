"""Handlers without a broker: what their parameters ask for, options, executors and middlewares."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any

import pytest
from shoal.worker import Accepted, Job, Reject, Rejected, Released, Retry, Worker
from shoal.worker.handlers import Arguments


@dataclass
class Image:
    name: str


async def ask_job(job): ...
async def ask_annotated_job(job: Job): ...
async def ask_typed_job(job: Job[Image]): ...
async def ask_payload(image: Image): ...
async def ask_both(image: Image, job: Job): ...
async def ask_both_swapped(job: Job, image: Image, more: int = 3): ...
async def ask_batch(jobs: list[Job]): ...
async def ask_batch_of_images(images: list[Image]): ...


@pytest.mark.parametrize(
    ("function", "batch", "order"),
    [
        (ask_job, False, ("job",)),
        (ask_annotated_job, False, ("job",)),
        (ask_typed_job, False, ("job",)),
        (ask_payload, False, ("payload",)),
        (ask_both, False, ("payload", "job")),
        (ask_both_swapped, False, ("job", "payload")),
        (ask_job, True, ("job",)),
        (ask_batch, True, ("job",)),
        (ask_batch_of_images, True, ("payload",)),
    ],
)
def test_parameters_ask_for_the_job_and_its_payload(
    function: Any, batch: bool, order: tuple[str, ...]
) -> None:
    found = Arguments.from_function(function, batch=batch, codec=None)
    assert found.order == order
    if function in (ask_typed_job, ask_payload, ask_both, ask_batch_of_images):
        assert found.decode(b'{"name": "a"}') == Image("a")


async def ask_nothing(): ...
async def ask_three(a: int, b: int, c: int): ...
async def ask_two_payloads(a: int, b: int): ...


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (ask_nothing, {}, "takes 0 arguments"),
        (ask_three, {}, "takes 3 arguments"),
        (ask_two_payloads, {}, "both arguments of handler ask_two_payloads ask for the payload"),
        (ask_payload, {"batch": 10}, "takes batches, but is annotated"),
        (ask_payload, {"executor": "thread"}, "`async def` cannot run with executor='thread'"),
        (len, {"executor": "async"}, "`def` cannot run with executor='async'"),
        (ask_payload, {"executor": "fiber"}, "'fiber' is not async, thread or process"),
        (ask_payload, {"concurrency": 0}, "concurrency is 0; it is at least 1"),
        (ask_payload, {"retries": -1}, "retries is -1"),
        (ask_payload, {"timeout": 0}, "timeout is 0"),
        (ask_batch, {"batch": 2, "results": "r"}, "use results without batch"),
    ],
)
def test_a_handler_that_cannot_run_is_refused_when_it_is_registered(
    function: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        Worker("g").handler("t", **options)(function)
    assert message in str(refused.value)


def test_a_topic_has_one_handler() -> None:
    worker = Worker("g")
    worker.handler("a", "b")(ask_payload)
    with pytest.raises(ValueError, match="topic b has a handler already"):
        worker.handler("b")(ask_both)


def test_a_worker_needs_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_GROUP_ID", "printers")
    assert Worker().group == "printers"
    monkeypatch.delenv("SHOAL_GROUP_ID")
    with pytest.raises(ValueError, match="name the share group"):
        Worker()


# One job, without a broker. Functions of the process executor are found by their names.


def work(image: Image, job: Job) -> str:
    if image.name == "retry":
        raise Retry("busy", after="7s")
    if image.name == "reject":
        raise Reject("unusable")
    if image.name == "exit":
        raise SystemExit(3)
    if image.name == "renew":
        job.renew()
    if image.name == "die":
        os._exit(9)
    if image.name == "fail":
        raise KeyError(image.name)
    is_main = multiprocessing.parent_process() is None
    return f"{image.name} {job.group} {job.delivery_count} {is_main}"


async def work_async(image: Image, job: Job) -> str:
    return work(image, job)


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_a_job_has_the_same_outcome_in_each_executor(executor: Any) -> None:
    """The process takes longer than a second to start and to import this file."""
    worker = Worker("g")
    function = work_async if executor == "async" else work
    worker.handler("images", executor=executor, retries=2)(function)

    def run(name: str, **options: Any) -> Any:
        return worker.run_once(function, Image(name), **options)

    assert run("a", delivery_count=2) == Accepted(f"a g 2 {executor != 'process'}")
    retried, rejected, failed = run("retry"), run("reject"), run("fail", delivery_count=3)
    assert (retried.delay_s, str(retried.reason)) == (7.0, "shoal.worker.Retry: busy")
    assert str(rejected.reason) == "shoal.worker.Reject: unusable"
    assert isinstance(failed, Rejected)
    assert (failed.reason.exception_class, failed.reason.message) == ("KeyError", "'fail'")
    assert "raise KeyError(image.name)" in failed.reason.stacktrace
    undecodable = worker.run_once(function, b"{}")
    assert isinstance(undecodable, Rejected)
    assert "payload lacks name of Image" in undecodable.reason.message
    assert run("renew").result.startswith("renew")
    if executor == "thread":
        assert "raised SystemExit" in run("exit").reason.message


def test_a_process_that_dies_fails_its_job_alone() -> None:
    """The process takes longer than a second to start and to import this file."""
    worker = Worker("g")
    worker.handler("images", executor="process")(work)
    dead = worker.run_once(work, Image("die"))
    assert isinstance(dead, Released)
    assert str(dead.reason) == "ChildProcessError: the handler's process ended with 9"


def test_middlewares_run_around_each_job() -> None:
    worker, seen = Worker("g"), []

    @worker.middleware
    async def outer(job: Job, call: Any) -> Any:
        seen.append(f"before {job.id}")
        try:
            return await call(job) + "!"
        except KeyError as error:
            seen.append(f"error {error}")
            raise

    @worker.middleware
    async def inner(job: Job, call: Any) -> Any:
        seen.append("inner")
        return await call(job)

    @worker.handler("images")
    async def handle(image: Image) -> str:
        if image.name == "bad":
            raise KeyError("bad")
        return image.name

    assert worker.run_once(handle, Image("a")) == Accepted("a!")
    assert isinstance(worker.run_once(handle, Image("bad")), Released)
    assert seen == ["before images-0@0", "inner"] * 2 + ["error 'bad'"]


def test_a_batch_handler_runs_without_a_broker() -> None:
    worker = Worker("g")

    @worker.handler("images", batch=10)
    async def handle(images: list[Image]) -> list[Exception | None]:
        return [Reject("bad") if image.name == "bad" else None for image in images]

    assert isinstance(worker.run_once(handle, Image("good")), Accepted)
    assert isinstance(worker.run_once(handle, Image("bad")), Rejected)


def test_a_running_loop_awaits_one_job() -> None:
    worker = Worker("g")
    worker.handler("images")(ask_payload)
    outcome = asyncio.run(worker.handle_once(ask_payload, Image("a")))
    assert outcome == Accepted(None)


def test_a_job_shows_its_record() -> None:
    worker = Worker("g")

    @worker.handler("images", timeout="1m")
    async def handle(job: Job) -> None:
        assert (job.topic, job.partition, job.offset, job.key) == ("images", 0, 0, b"k")
        assert job.headers == {"traceparent": b"00-4bf9-00f0-01", "a": b"1"}
        assert job.trace_id == "4bf9"
        assert job.payload == job.value == b"x"
        assert 59 < job.seconds_left <= 60
        assert not job.cancelled

    headers = {"traceparent": b"00-4bf9-00f0-01", "a": b"1"}
    assert isinstance(worker.run_once(handle, b"x", key=b"k", headers=headers), Accepted)

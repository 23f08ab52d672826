"""The files that one ShareAcknowledge passes, from the wire to the state log and back."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import shoal
import uvloop
from shoal.protocol.api import ApiKey
from shoal.server import logs
from shoal.server.config import resolve
from shoal.server.process import compose
from support.brokers.wireclient import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

FILES_MAX = 15
GROUP, MEMBER, TOPIC = "g", "A" * 22, "t"
ROOT = f"{Path(shoal.__file__).parent}/"
#: The files whose calls are traced.
TRACED = ("server/", "coordinator/")
#: The request turns around at the append to the partition of `__share_group_state`.
TURN = ("replication/partition.py", "append_records")
#: The first file, and the function that writes the response to the socket.
WIRE = "server/network/connection.py"
END = (WIRE, "_flush")


class Call(NamedTuple):
    """A call within the traced files, with the calls that it made."""

    file: str
    is_up: bool
    calls: list[Call]


class Tracer:
    """The tree of calls from the first call of the connection to the write of the response."""

    def __init__(self) -> None:
        self.root = Call("", False, [])
        self._stack: list[Call] = [self.root]
        self._is_up = self._ended = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(ROOT) or self._ended:
            return
        file = code.co_filename[len(ROOT) :]
        if event == "call" and (file, code.co_name) == TURN:
            self._is_up = True
        if not file.startswith(TRACED):
            return
        if event == "return":
            if len(self._stack) > 1:
                self._stack.pop()
            return
        self._ended = self._is_up and (file, code.co_name) == END
        if file == WIRE or self.root.calls:
            call = Call(file, self._is_up, [])
            self._stack[-1].calls.append(call)
            self._stack.append(call)


def passed(call: Call, *, is_up: bool, above: tuple[str, ...] = ()) -> list[str]:
    """Return the files that are passed below `call` in one direction, an entry for each visit."""
    visits = []
    for visit in _visits(call):
        here = visit.is_up is is_up
        if here and visit.file not in above:
            visits.append(visit.file)
        visits += passed(visit, is_up=is_up, above=(*above, visit.file) if here else above)
    return visits


def _visits(call: Call) -> list[Call]:
    """Return the visits of other files that a call makes; consecutive calls of one file are one."""
    visits: list[Call] = []
    for called in _calls(call):
        if not _calls(called):
            continue  # It returns a fact, and does not pass the request on.
        last = visits[-1] if visits else None
        if last is not None and (last.file, last.is_up) == (called.file, called.is_up):
            visits[-1] = Call(last.file, last.is_up, [*last.calls, *called.calls])
        else:
            visits.append(called)
    return visits


def _calls(call: Call) -> list[Call]:
    """Return the calls of other files, also those that its own file makes further down."""
    found: list[Call] = []
    for called in call.calls:
        is_same = (called.file, called.is_up) == (call.file, call.is_up)
        found += _calls(called) if is_same else [called]
    return found


def acquired(bootstrap: str) -> tuple[WireClient, Callable[[int], Any]]:
    """Acquire records of a new topic. Return the client, and a function that accepts an offset."""
    client = WireClient(bootstrap)
    topic_id = client.create_topic(TOPIC)
    client.produce(TOPIC, *[b"value"] * 10)
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": GROUP, "configs": [config]}
    client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})
    names = {"group_id": GROUP, "member_id": MEMBER}
    member_epoch, ends = 0, time.monotonic() + 60
    while True:
        body = {**names, "member_epoch": member_epoch, "subscribed_topic_names": [TOPIC]}
        beat = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, body)
        member_epoch = beat.member_epoch
        if beat.assignment and beat.assignment.topic_partitions:
            break
        assert time.monotonic() < ends, "no partition is assigned"
    epoch = 0

    def call(key: ApiKey, batches: list[dict[str, Any]], **fields: Any) -> Any:
        nonlocal epoch
        partition = {"partition_index": 0, "acknowledgement_batches": batches}
        topics = [{"topic_id": topic_id, "partitions": [partition]}]
        answer = client.call(
            key, 1, {**names, "share_session_epoch": epoch, "topics": topics, **fields}
        )
        assert answer.error_code == 0, answer
        epoch += 1
        return answer

    limits: dict[str, Any] = {"max_wait_ms": 1000, "min_bytes": 1, "max_bytes": 1 << 20}
    limits |= {"max_records": 10, "batch_size": 10, "forgotten_topics_data": []}
    while not any(
        partition.acquired_records
        for topic in call(ApiKey.SHARE_FETCH, [], **limits).responses
        for partition in topic.partitions
    ):
        assert time.monotonic() < ends, "nothing is acquired"

    def accept(offset: int) -> Any:
        batch = {"first_offset": offset, "last_offset": offset, "acknowledge_types": [1]}
        return call(ApiKey.SHARE_ACKNOWLEDGE, [batch]).responses[0].partitions[0].error_code

    return client, accept


def traced(data_dir: Path) -> Tracer:
    """Trace one ShareAcknowledge of a broker in this process."""

    async def main() -> Tracer:
        flags = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(data_dir)}
        broker = compose(resolve(flags, {}), asyncio.get_running_loop())
        await broker.start()
        try:
            bootstrap = f"127.0.0.1:{broker.listeners[0].port}"
            client, accept = await asyncio.to_thread(acquired, bootstrap)
            assert await asyncio.to_thread(accept, 0) == 0
            broker.timers.stop()  # Their calls are not part of the request.
            tracer = Tracer()
            sys.setprofile(tracer)
            try:
                assert await asyncio.to_thread(accept, 1) == 0
            finally:
                sys.setprofile(None)
            client.sock.close()
            return tracer
        finally:
            await broker.stop()

    logs.configure(json=True, level="critical")
    return uvloop.run(main())


def test_an_acknowledgement_passes_few_files_and_each_once_in_each_direction(
    tmp_path: Path,
) -> None:
    """The request goes *down* until its change is appended to `__share_group_state`, and *up* from
    there: from the commit, which wakes the waiters, until the response is written to the socket.

    A file is *passed* when one of its functions is called and calls on into another file of
    `server/` or `coordinator/`. A function that returns a fact to its caller, such as the clock,
    passes nothing on. A file is *left* when it is no longer on the stack and a further file is
    passed. Several calls in a row are one visit, and a callback into a file that is on the stack
    does not enter it again.
    """
    root = traced(tmp_path).root
    down, up = passed(root, is_up=False), passed(root, is_up=True)
    assert down[0] == WIRE in up, (down, up)
    assert len(set(down) | set(up)) <= FILES_MAX, (down, up)
    assert len(down) == len(set(down)), down
    assert len(up) == len(set(up)), up

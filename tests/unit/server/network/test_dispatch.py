"""Responses of handlers and errors of handlers, as clients see them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import uvloop
from shoal.protocol import codec, frames
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode, WireError
from shoal.security.requirements import PUBLIC
from shoal.server import logs
from shoal.server.network.api import Api, Handler, Peer, Request
from shoal.server.network.dispatch import ControllerPort, PendingResponse
from support.brokers.connections import LISTENER, FakeController, Server

if TYPE_CHECKING:
    from shoal.server.network.encoding import Buffers

VERSION = 4


def answer_of(
    handler: Handler, *, by_controller: bool = False, controller: ControllerPort | None = None
) -> Buffers | None:
    """Return the response to InitProducerId if `handler` handles it."""

    async def main() -> Buffers | None:
        row = Api(ApiKey.INIT_PRODUCER_ID, range(6), PUBLIC, handler, by_controller=by_controller)
        server = Server(row, controller=controller)
        body = codec.write_request(ApiKey.INIT_PRODUCER_ID, VERSION, {})
        frame = frames.build_request_head(ApiKey.INIT_PRODUCER_ID, VERSION, 7, "t") + body
        peer = Peer("h", 1, LISTENER, "User:ANONYMOUS", "c")
        found = server.dispatcher.handle(bytearray(frame), peer)
        if isinstance(found, PendingResponse):
            ready = asyncio.Event()
            found.on_ready(lambda _: ready.set())
            await ready.wait()
            return found.build_buffers()
        return found

    logs.configure(json=True, level="critical")
    return uvloop.run(main())


def parsed(buffers: Buffers | None) -> Any:
    assert buffers is not None
    data = b"".join(buffers)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert int.from_bytes(data[4:8], "big") == 7
    return codec.read_response(ApiKey.INIT_PRODUCER_ID, VERSION, data, 9)


def later(result: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if isinstance(result, Exception):
        asyncio.get_running_loop().call_soon(future.set_exception, result)
    else:
        asyncio.get_running_loop().call_soon(future.set_result, result)
    return future


def raising(error: Exception) -> Handler:
    def handle(_context: object, _request: object) -> Any:
        raise error

    return handle


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (lambda b, r: {"producer_id": 5}, ErrorCode.none),
        (lambda b, r: later({"producer_id": 5}), ErrorCode.none),
        (raising(ApiError(ErrorCode.not_coordinator)), ErrorCode.not_coordinator),
        (lambda b, r: later(ApiError(ErrorCode.not_coordinator)), ErrorCode.not_coordinator),
        (raising(KeyError("a fault")), ErrorCode.unknown_server_error),
        (lambda b, r: later(KeyError("a fault")), ErrorCode.unknown_server_error),
        (lambda b, r: {"producer_id": "no number"}, ErrorCode.unknown_server_error),
    ],
)
def test_responses_and_errors(handler: Handler, code: ErrorCode) -> None:
    body = parsed(answer_of(handler))
    assert (body.error_code, body.producer_id) == (code, 5 if code is ErrorCode.none else -1)


@pytest.mark.parametrize("handler", [raising(WireError("no")), lambda b, r: later(WireError("no"))])
def test_wire_errors_close_the_connection(handler: Handler) -> None:
    with pytest.raises(WireError):
        answer_of(handler)


def test_no_response() -> None:
    assert answer_of(lambda b, r: None) is None


@pytest.mark.parametrize("is_local", [True, False])
def test_requests_to_the_controller_are_forwarded_from_other_nodes(is_local: bool) -> None:
    remote = bytes(codec.write_response(ApiKey.INIT_PRODUCER_ID, VERSION, {"producer_id": 6}))
    controller = FakeController(is_local=is_local, body=remote)
    buffers = answer_of(lambda b, r: {"producer_id": 5}, by_controller=True, controller=controller)
    assert parsed(buffers).producer_id == (5 if is_local else 6)
    assert len(controller.forwarded) == (0 if is_local else 1)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_large_body_is_read_in_turns(is_cut: bool) -> None:
    """The connection waits for it with its next request (`is_in_pieces`)."""
    handled: list[int] = []

    def handle(_context: object, request: Request) -> dict[str, object]:
        handled.append(len(request.body.topics))
        return {}

    async def main() -> Buffers:
        server = Server(Api(ApiKey.METADATA, range(14), PUBLIC, handle))
        topics = [{"topic_id": None, "name": f"t{number}"} for number in range(5000)]
        body = codec.write_request(ApiKey.METADATA, 12, {"topics": topics})
        if is_cut:
            del body[-3:]
        frame = frames.build_request_head(ApiKey.METADATA, 12, 7, "t") + body
        peer = Peer("h", 1, LISTENER, "User:ANONYMOUS", "c")
        pending = server.dispatcher.handle(bytearray(frame), peer)
        assert isinstance(pending, PendingResponse)
        assert pending.request is not None
        assert pending.request.is_in_pieces
        for _ in range(5):
            await asyncio.sleep(0)
        assert not handled, "it is still read"
        ready = asyncio.Event()
        pending.on_ready(lambda _: ready.set())
        await ready.wait()
        return pending.build_buffers()

    if is_cut:
        with pytest.raises(WireError):
            uvloop.run(main())
    else:
        uvloop.run(main())
    assert sum(handled) == (0 if is_cut else 5000)

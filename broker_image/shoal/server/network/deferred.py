"""An answer that is due, whose callbacks run when it is there, not a turn of the loop later.

A turn costs a poll of the sockets. An answer to one record's acknowledgement is made in the turn in
which its write is committed, and leaves in that turn: a third of the broker's time for a job
(`bench`, one commit a record). A fetch that waits is answered so, too, and may overtake the answer
to the produce that it waits for. It has of a future what dispatch and a connection ask for, and is
none: making one costs 2 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.server.network.api import Body


class DeferredResponse:
    """An answer that is due. Its callbacks must neither raise nor depend on a fresh stack."""

    __slots__ = ("_calls", "_cancelled", "_error", "_result")

    def __init__(self) -> None:
        self._calls: list[Callable[[Any], object]] = []
        self._result: Body | None = None
        self._error: Exception | None = None
        self._cancelled = False

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        if self.done():
            call(self)
        else:
            self._calls.append(call)

    def set_result(self, result: Body) -> None:
        assert not self.done()
        self._result = result
        self._call()

    def set_exception(self, error: Exception) -> None:
        assert not self.done()
        self._error = error
        self._call()

    def cancel(self) -> bool:
        """Give it up, if it is not there yet."""
        if self.done():
            return False
        self._cancelled = True
        self._call()
        return True

    def done(self) -> bool:
        return self._result is not None or self._error is not None or self._cancelled

    def cancelled(self) -> bool:
        return self._cancelled

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Body:
        assert self._result is not None
        return self._result

    def _call(self) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            call(self)

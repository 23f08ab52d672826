"""The time that a client gives the controller for a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol import codec
from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.server.network.api import Request


def check_timeout(request: Request) -> None:
    """Raise REQUEST_TIMED_OUT for a change that may take no time: as in Kafka, it is not begun."""
    if codec.to_ms(request.body.timeout) <= 0:
        raise ApiError(ErrorCode.request_timed_out)

"""UnregisterController: remove the registration of a controller, from metadata.version 33 on.

Shoal's controllers do not register, so there is none to remove.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import CONTROLLER_ID_NOT_REGISTERED, ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import quorum as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


#: The metadata.version from which on controllers can be unregistered: 4.4-IV2.
UNREGISTRATION_LEVEL = 33


def handle(broker: Broker, request: Request) -> responses.UnregisterControllerResponse:
    if broker.metadata.image.features.get("metadata.version", 0) < UNREGISTRATION_LEVEL:
        raise ApiError(
            ErrorCode.unsupported_version,
            "The current MetadataVersion is too old to support controller unregistration.",
        )
    return {
        "error_code": CONTROLLER_ID_NOT_REGISTERED,
        "error_message": f"Controller ID {request.body.controller_id} is not currently registered.",
    }

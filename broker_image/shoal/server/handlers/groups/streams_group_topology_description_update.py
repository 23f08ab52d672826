"""StreamsGroupTopologyDescriptionUpdate: a member describes its topology (KIP-1331).

Kafka hands descriptions to a plugin, `group.streams.topology.description.plugin.class`. Without
one, as here, no heartbeat asks for a description, and this request is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from shoal.protocol.responses import groups as responses
    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def handle(
    _broker: Broker, _request: Request
) -> responses.StreamsGroupTopologyDescriptionUpdateResponse:
    raise ApiError(
        ErrorCode.unsupported_version,
        "The broker has no streams group topology description plugin configured.",
    )

"""Lines of the audit log for changes of ACLs, users, tokens, quotas and log levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.protocol.api import ApiKey
from shoal.security import audit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.broker import Broker
    from shoal.server.network.api import Request


def log_changes(broker: Broker, request: Request, changes: Iterable[str]) -> None:
    """Log one line for each change that the request has made. The texts have no secrets."""
    peer, api = request.peer, ApiKey(request.header.api_key).name
    for what in changes:
        broker.audit.note(
            audit.build_change(principal=peer.principal, host=peer.host, api=api, description=what)
        )

"""Connections whose clients have logged in by SCRAM. They end with the credential.

In Kafka, a credential that is removed only refuses new logins: an open connection stays until
`connections.max.reauth.ms`, which is not set by default. Here it ends within the time that the
change takes to reach the broker. A credential that is replaced ends nothing, so that a password can
be changed while its user works. Sessions of delegation tokens are not of this kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.security import audit
from shoal.security.sasl import LoginRefused
from shoal.security.scram import SCRAM_MECHANISMS

if TYPE_CHECKING:
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.audit import AuditLogger
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.api import Peer
    from shoal.server.node import Node

#: User name and mechanism, as `MetadataImage.scram_credentials` has them.
Credential = tuple[str, int]
#: The key of this module in `Peer.closed_calls`.
_CLOSED = "scram session"


class Closable(Protocol):
    """A connection."""

    def close(self) -> None: ...


class ScramSessions:
    """Owns the connections of all listeners of a node, by their credentials."""

    def __init__(self, node: Node, cache: MetadataCache, audit_log: AuditLogger) -> None:
        self._cache = cache
        self._audit = audit_log
        self._connections: dict[Credential, dict[Closable, None]] = {}
        self._is_enabled: bool = node.config["shoal.sasl.scram.disconnect.removed.users"]
        if self._is_enabled:
            cache.subscribe(self._on_metadata_changed)

    def begin(self, mechanism: str, user: str, connection: Closable, peer: Peer) -> None:
        """Note a connection whose client has logged in by a credential.

        Raises `LoginRefused` if the credential was removed during the login.
        """
        if not self._is_enabled:
            return
        credential = user, SCRAM_MECHANISMS[mechanism].number
        if credential not in self._cache.image.scram_credentials:
            raise LoginRefused("the credential was removed during the login")
        self._connections.setdefault(credential, {})[connection] = None
        peer.closed_calls.put(_CLOSED, lambda: self._forget(credential, connection))

    def _forget(self, credential: Credential, connection: Closable) -> None:
        connections = self._connections.get(credential, {})
        connections.pop(connection, None)
        if not connections:
            self._connections.pop(credential, None)

    def _on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        for credential in delta.scram_credentials:
            if credential in image.scram_credentials:
                continue
            ended = self._connections.pop(credential, {})
            for connection in ended:
                connection.close()
            if ended:
                entry = audit.build_sessions_ended(
                    principal=f"User:{credential[0]}",
                    reason="the SCRAM credential was removed",
                    connections=len(ended),
                )
                self._audit.note(entry)

"""How this node shows itself to other nodes: TLS and SASL of its own connections.

A connection to a listener of another node uses this node's configs of the listener with the same
name. They have the truststore, the keystore with the client's certificate, and for SASL the user in
`sasl.jaas.config`. New connections get what is in force when they are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.errors import SecurityError
from shoal.client.settings import Settings
from shoal.server.cluster_config import MECHANISMS
from shoal.server.config import InvalidConfig
from shoal.server.listener_security import PREFIX, ListenerSecurity, with_layers

if TYPE_CHECKING:
    from shoal.client.security import Security
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.node_tls import NodeTls
    from shoal.server.node import Node

_JAAS = "sasl.jaas.config"
_ENABLED = "sasl.enabled.mechanisms"


class LinkSecurity:
    """Owns the security settings of connections, by the name of the listener at the other end."""

    def __init__(self, node: Node, cache: MetadataCache, tls: NodeTls) -> None:
        self._node = node
        self._cache = cache
        self._tls = tls
        #: The settings, and the properties that they were made of.
        self._known: dict[str, tuple[dict[str, str], Security]] = {}

    def check(self) -> None:
        """Check the configs for connections to other nodes of the cluster. Raises
        `InvalidConfig`."""
        cluster = self._node.cluster
        if not cluster.clustered:
            return
        for name in dict.fromkeys((cluster.listener, cluster.inter_broker)):
            try:
                self.of(name)
            except SecurityError as error:
                raise InvalidConfig(
                    f"This node could not connect to the listener {name} of other nodes: {error}."
                ) from None

    def of(self, name: str) -> Security:
        """Return the settings for connections to a listener. Raises `SecurityError`.

        A listener that this node does not have is taken for that of the controllers.
        """
        cluster = self._node.cluster
        if name not in cluster.security:
            name = cluster.listener
        properties = self._properties(with_layers(cluster.security[name], self._cache.image.layers))
        known = self._known.get(name)
        if known is None or known[0] != properties:
            try:
                security = Settings.of("localhost:1", properties).security
            except ValueError as error:
                raise SecurityError(str(error)) from None
            known = self._known[name] = properties, security
        return known[1]

    def _properties(self, security: ListenerSecurity) -> dict[str, str]:
        """Return the properties of a Kafka client."""
        found = {"security.protocol": security.protocol.name}
        tls = self._tls.of(security.name)
        if tls is not None:
            found |= tls.certificates.client
        if security.protocol.is_sasl:
            found |= self._sasl(security)
        return found

    def _sasl(self, security: ListenerSecurity) -> dict[str, str]:
        cluster = self._node.cluster
        is_controllers = security.name != cluster.inter_broker
        config = f"sasl.mechanism.{'controller' if is_controllers else 'inter.broker'}.protocol"
        mechanism = security.value(config)
        if mechanism not in MECHANISMS:
            raise SecurityError(
                f"{config} is {mechanism}, which is not supported. Set it to one of"
                f" {', '.join(MECHANISMS)}"
            )
        if security.name in cluster.kinds and mechanism not in security.value(_ENABLED):
            raise SecurityError(f"{config} must be included in {_ENABLED}: it is {mechanism}")
        jaas = security.value(_JAAS, mechanism)
        if not jaas:
            name = f"{PREFIX}{security.name.lower()}.{mechanism.lower()}.{_JAAS}"
            raise SecurityError(
                f"this node has no user for {mechanism}. Set {name} to the login module, with"
                ' username="…" and password="…"'
            )
        return {"sasl.mechanism": mechanism, _JAAS: jaas}

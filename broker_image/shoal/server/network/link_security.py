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
    from shoal.client.security.security import Security
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
        self._security_by_name: dict[str, tuple[dict[str, str], Security]] = {}

    def check(self) -> None:
        """Check the configs for connections to other nodes of the cluster. Raises
        `InvalidConfig`."""
        cluster = self._node.cluster
        if not cluster.clustered:
            return
        for name in dict.fromkeys((cluster.listener, cluster.inter_broker)):
            try:
                self.get_security(name)
            except SecurityError as error:
                raise InvalidConfig(
                    f"This node could not connect to the listener {name} of other nodes: {error}."
                ) from None

    def get_security(self, name: str) -> Security:
        """Return the settings for connections to a listener. Raises `SecurityError`.

        A listener that this node does not have is taken for that of the controllers.
        """
        cluster = self._node.cluster
        if name not in cluster.security:
            name = cluster.listener
        properties = self._build_properties(
            with_layers(cluster.security[name], self._cache.image.layers)
        )
        cached = self._security_by_name.get(name)
        if cached is None or cached[0] != properties:
            try:
                security = Settings.from_bootstrap("localhost:1", properties).security
            except ValueError as error:
                raise SecurityError(str(error)) from None
            cached = self._security_by_name[name] = properties, security
        return cached[1]

    def _build_properties(self, security: ListenerSecurity) -> dict[str, str]:
        """Return the properties of a Kafka client."""
        properties = {"security.protocol": security.protocol.name}
        tls = self._tls.get(security.name)
        if tls is not None:
            properties |= tls.certificates.client
        if security.protocol.is_sasl:
            properties |= self._build_sasl(security)
        return properties

    def _build_sasl(self, security: ListenerSecurity) -> dict[str, str]:
        cluster = self._node.cluster
        is_controllers = security.name != cluster.inter_broker
        config = f"sasl.mechanism.{'controller' if is_controllers else 'inter.broker'}.protocol"
        mechanism = security.get_value(config)
        if mechanism not in MECHANISMS:
            raise SecurityError(
                f"{config} is {mechanism}, which is not supported. Set it to one of"
                f" {', '.join(MECHANISMS)}"
            )
        if security.name in cluster.kinds and mechanism not in security.get_value(_ENABLED):
            raise SecurityError(f"{config} must be included in {_ENABLED}: it is {mechanism}")
        jaas = security.get_value(_JAAS, mechanism)
        if not jaas:
            name = f"{PREFIX}{security.name.lower()}.{mechanism.lower()}.{_JAAS}"
            raise SecurityError(
                f"this node has no user for {mechanism}. Set {name} to the login module, with"
                ' username="…" and password="…"'
            )
        return {"sasl.mechanism": mechanism, _JAAS: jaas}

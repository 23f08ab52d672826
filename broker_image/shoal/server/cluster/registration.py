"""How this node presents itself to its cluster: endpoints, incarnation, broker registration."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol

from shoal.metadata import controller
from shoal.metadata.broker_rules import CORDONED
from shoal.metadata.image import BrokerEndpoint, BrokerImage
from shoal.quorum.voters import VoterEndpoint as QuorumEndpoint
from shoal.server.cluster_config import Listeners

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from shoal.log.directory import LogDirectory
    from shoal.metadata.image import MetadataImage
    from shoal.server.node import Node


class BoundListener(Protocol):
    """A listener that has its address."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class Registration:
    """Owns the incarnation id of this start."""

    def __init__(
        self, node: Node, directory: LogDirectory, listeners: Sequence[BoundListener]
    ) -> None:
        """`listeners` gets the node's listeners as they are bound."""
        self._node = node
        self._directory = directory
        self.listeners = listeners
        self.incarnation_id = node.make_random_id()

    def get_endpoints(self) -> list[BrokerEndpoint]:
        """Return the advertised address of each listener."""
        advertised = self._node.config.advertised
        endpoints = []
        for listener in self.listeners:
            endpoint = advertised.get(listener.name)
            host = endpoint.host if endpoint else listener.host
            if host in ("", "0.0.0.0", "::"):
                host = socket.getfqdn()
            port = endpoint.port if endpoint and endpoint.port else listener.port
            protocol = self._node.cluster.security[listener.name].protocol
            endpoints.append(BrokerEndpoint(listener.name, host, port, int(protocol)))
        return endpoints

    def get_quorum_endpoints(self) -> tuple[QuorumEndpoint, ...]:
        """Return the addresses at which this node serves the metadata quorum."""
        return tuple(
            QuorumEndpoint(e.name, e.host, e.port)
            for e in self.get_endpoints()
            if e.name == self._node.cluster.listener
        )

    def list_cordoned(self, image: MetadataImage) -> tuple[UUID, ...]:
        """Return the ids of the log directories that get no new replicas (KIP-1066)."""
        names = image.broker_config[CORDONED]
        is_cordoned = "*" in names or self._node.config.data_dir in names
        return (self._directory.directory_id,) if is_cordoned else ()

    def make_broker_image(self) -> BrokerImage:
        """Return the registration that this broker sends to the controller (KIP-631)."""
        kinds = self._node.cluster.kinds
        clients = [e for e in self.get_endpoints() if Listeners.BROKER in kinds[e.name]]
        return BrokerImage(
            self._node.id,
            self.incarnation_id,
            -1,
            tuple(clients),
            controller.SUPPORTED_FEATURES,
            self._node.config["broker.rack"],
            fenced=False,
            log_dirs=(self._directory.directory_id,),
        )

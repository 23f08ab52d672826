"""The configs of a node about its cluster: roles, first voters, kinds of listeners."""

from __future__ import annotations

import re
from enum import Flag
from typing import TYPE_CHECKING, NamedTuple

from shoal.quorum.replica import QuorumSettings
from shoal.quorum.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from shoal.server.config import METRICS, BrokerConfig, InvalidConfig
from shoal.server.listener_security import PREFIX, ListenerSecurity, SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping

_VOTER = re.compile(r"(\d+)@(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]@]+)):(\d+)")
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]@]+)):(\d+)")
BROKER, CONTROLLER = "broker", "controller"


class Listeners(Flag):
    """Kinds of listeners: for clients and brokers, and for controllers.

    A listener is of both kinds if the quorum uses the port of the clients (ADR 52).
    """

    BROKER = 1
    CONTROLLER = 2
    BOTH = 3


class ClusterConfig(NamedTuple):
    """`voters` is None for a cluster of one node. `listener` serves the quorum, and `inter_broker`
    serves other brokers. `kinds` has the listeners that this node opens, by name. `security` has
    these, and those of other nodes to which this node connects."""

    roles: frozenset[str]
    cluster_id: str | None
    voters: VoterSet | None
    listener: str
    inter_broker: str
    kinds: Mapping[str, Listeners]
    security: Mapping[str, ListenerSecurity]
    settings: QuorumSettings

    @property
    def clustered(self) -> bool:
        return self.voters is not None

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def has_controller_listener(self) -> bool:
        return any(Listeners.CONTROLLER in kind for kind in self.kinds.values())


def make_cluster_config(config: BrokerConfig) -> ClusterConfig:
    """Return the configs of a node about its cluster. Raises `InvalidConfig`."""
    names = [listener.name for listener in config.listeners]
    of_controllers = [n.upper() for n in config["controller.listener.names"] or ()]
    listener = next((n for n in of_controllers if n in names), None)
    roles = frozenset(config["process.roles"])
    inter_broker = _find_inter_broker_listener(config, roles, names, of_controllers)
    kinds = _build_kinds(roles, names, of_controllers, inter_broker)
    listener = listener or (of_controllers[0] if of_controllers else inter_broker)
    voters = _parse_voters(config, listener)
    if voters is not None:
        _check_node(config, roles, voters)
    elif CONTROLLER not in roles:
        raise InvalidConfig(
            "process.roles is broker alone, and no controller is named: set"
            " controller.quorum.voters or controller.quorum.bootstrap.servers, or let the broker"
            " be its own controller (process.roles=broker,controller)."
        )
    return ClusterConfig(
        roles,
        _parse_cluster_id(config),
        voters,
        listener,
        inter_broker,
        kinds,
        _build_security(config, kinds, (listener, inter_broker, *of_controllers)),
        _build_settings(config),
    )


def _find_inter_broker_listener(
    config: BrokerConfig, roles: frozenset[str], names: list[str], of_controllers: list[str]
) -> str:
    """Return the name of the listener for other brokers. Raises `InvalidConfig`."""
    listener_name = config["inter.broker.listener.name"]
    protocol = config.explicit.get("security.inter.broker.protocol")
    if listener_name and protocol is not None:
        raise InvalidConfig(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be"
            " set."
        )
    setting = "inter.broker.listener.name" if listener_name else "security.inter.broker.protocol"
    chosen = listener_name or protocol
    if chosen is None:
        return _find_first_listener(names, of_controllers)
    if chosen.upper() in names:
        return chosen.upper()
    if not listener_name and BROKER not in roles:
        return _find_first_listener(names, of_controllers)
    raise InvalidConfig(
        f"{setting} is {chosen.upper()}, which is not in listeners: name one of {', '.join(names)}"
        f"{'' if listener_name else ' by inter.broker.listener.name'}."
    )


def _build_security(
    config: BrokerConfig, kinds: Mapping[str, Listeners], linked: tuple[str, ...]
) -> dict[str, ListenerSecurity]:
    """Return the security of the listeners that this node opens and of those it connects to.

    Raises `InvalidConfig`.
    """
    protocols = config.security_protocols
    security = {}
    for name in dict.fromkeys((*kinds, *linked)):
        if name not in protocols:
            raise InvalidConfig(
                f"The listener {name} has no security protocol: name it in"
                " listener.security.protocol.map."
            )
        security[name] = ListenerSecurity(name, protocols[name], config.values, config.explicit)
    if config["shoal.metrics.security.protocol"] == "SSL" and config.metrics_listener is not None:
        if METRICS in security:
            raise InvalidConfig(
                f"A listener has the name {METRICS}, which stands for shoal.metrics.listener: give"
                " it another name."
            )
        security[METRICS] = ListenerSecurity(
            METRICS, SecurityProtocol.SSL, config.values, config.explicit
        )
    for name in kinds:
        if security[name].protocol.is_sasl:
            _check_mechanisms(security[name])
    return security


#: The SASL mechanisms of Kafka that this broker serves.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_MECHANISMS = "sasl.enabled.mechanisms"


def _check_mechanisms(security: ListenerSecurity) -> None:
    """Check the SASL mechanisms of a listener. Raises `InvalidConfig`."""
    own = f"{PREFIX}{security.name.lower()}.{_MECHANISMS}"
    if own not in security.overrides and _MECHANISMS not in security.overrides:
        problem = f"{_MECHANISMS} is not set, and Kafka's default GSSAPI is not supported"
    else:
        enabled = security.get_value(_MECHANISMS)
        unknown = [mechanism for mechanism in enabled if mechanism not in MECHANISMS]
        if enabled and not unknown:
            return
        problem = (
            f"the SASL mechanism {unknown[0]} is not supported"
            if unknown
            else (f"{_MECHANISMS} is empty")
        )
    raise InvalidConfig(
        f"The listener {security.name} asks for {security.protocol.name}, but {problem}. Set {own}"
        f" to one or more of {', '.join(MECHANISMS)}."
    )


def _build_kinds(
    roles: frozenset[str], names: list[str], of_controllers: list[str], inter_broker: str
) -> dict[str, Listeners]:
    """Return the kind of each listener. Raises `InvalidConfig`.

    A node without the controller role opens no listeners for controllers. On a node without the
    broker role, all listeners are for controllers.
    """
    if CONTROLLER in roles and of_controllers and not set(of_controllers) & set(names):
        raise InvalidConfig(
            f"controller.listener.names is {','.join(of_controllers)}, which is not in listeners."
            f" Add {of_controllers[0]}://host:port to listeners."
        )
    if BROKER not in roles:
        return dict.fromkeys(names, Listeners.CONTROLLER)
    kinds = {}
    for name in names:
        if name not in of_controllers:
            kinds[name] = Listeners.BROKER
        elif CONTROLLER in roles:
            # Kafka does not permit the same listener for both (ADR 52).
            kinds[name] = Listeners.BOTH if name == inter_broker else Listeners.CONTROLLER
    if not kinds:
        raise InvalidConfig(
            "controller.listener.names has all the listeners, and process.roles has no controller:"
            " leave one listener for clients and brokers."
        )
    return kinds


def _find_first_listener(names: list[str], of_controllers: list[str]) -> str:
    return next((n for n in names if n not in of_controllers), names[0])


def _parse_voters(config: BrokerConfig, listener: str) -> VoterSet | None:
    """Return the configured voters.

    Bootstrap servers become voters with negative ids, because their ids are not known yet.
    """
    voters = []
    for text in config["controller.quorum.voters"]:
        match = _VOTER.fullmatch(text.strip())
        if match is None or not 0 < int(match[4]) < 65536:
            raise InvalidConfig(
                f"controller.quorum.voters has {text!r}, which is not of the form id@host:port."
            )
        endpoint = VoterEndpoint(listener, match[2] or match[3], int(match[4]))
        voters.append(Voter(ReplicaKey(int(match[1])), (endpoint,)))
    if not voters:
        for index, text in enumerate(config["controller.quorum.bootstrap.servers"]):
            match = _ADDRESS.fullmatch(text.strip())
            if match is None or not 0 < int(match[3]) < 65536:
                raise InvalidConfig(
                    f"controller.quorum.bootstrap.servers has {text!r}, not of the form host:port."
                )
            endpoint = VoterEndpoint(listener, match[1] or match[2], int(match[3]))
            voters.append(Voter(ReplicaKey(-2 - index), (endpoint,)))
    if not voters:
        return None
    try:
        return VoterSet.from_voters(voters)
    except ValueError as error:
        raise InvalidConfig(
            f"controller.quorum.voters is inconsistent: {error}. List each node once."
        ) from None


def _check_node(config: BrokerConfig, roles: frozenset[str], voters: VoterSet) -> None:
    """Check that this node fits the voters. Raises `InvalidConfig`."""
    listed = config.node_id in voters.voters
    if listed and CONTROLLER not in roles:
        raise InvalidConfig(
            f"controller.quorum.voters has this node, {config.node_id}, and process.roles has no"
            " controller: add controller to process.roles, or take the node out of the voters."
        )
    if not listed and roles == {CONTROLLER} and min(voters.ids) >= 0:
        return  # a controller that can join the voters later
    if "node.id" not in config.explicit and "broker.id" not in config.explicit:
        raise InvalidConfig("A node of a cluster needs an id of its own: set node.id (--node-id).")


def _parse_cluster_id(config: BrokerConfig) -> str | None:
    """Return the configured cluster id. Raises `InvalidConfig`."""
    text: str | None = config["shoal.cluster.id"]
    if text is None:
        return None
    if not re.fullmatch(r"[A-Za-z0-9_\-]{1,64}", text):
        raise InvalidConfig(
            f"shoal.cluster.id is {text!r}; it may have letters, digits, - and _, up to 64 of them."
        )
    return text


def _build_settings(config: BrokerConfig) -> QuorumSettings:
    return QuorumSettings(
        election_timeout_ms=max(1, config["controller.quorum.election.timeout.ms"]),
        election_backoff_max_ms=max(1, config["controller.quorum.election.backoff.max.ms"]),
        fetch_timeout_ms=max(1, config["controller.quorum.fetch.timeout.ms"]),
        request_timeout_ms=max(1, config["controller.quorum.request.timeout.ms"]),
        retry_backoff_ms=max(1, config["controller.quorum.retry.backoff.ms"]),
        fetch_max_bytes=config["controller.quorum.fetch.max.bytes"],
        fetch_snapshot_max_bytes=config["controller.quorum.fetch.snapshot.max.bytes"],
    )

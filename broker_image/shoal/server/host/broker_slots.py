"""The settings of several brokers on one host (`shoal.brokers.per.host`).

The first broker has the user's settings. The next brokers have the next ids, the next port of each
listener and of the metrics, and data directories next to the first one. All brokers have the host
as their rack, so that the replicas of a partition are on different hosts where possible.

This module only computes; `host` runs the brokers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from shoal.server.cluster_config import make_cluster_config
from shoal.server.config import BrokerConfig, Endpoint, InvalidConfig, bracket_host

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTING = "shoal.brokers.per.host"
#: Settings that `controller_listener` may add and that no flag sets.
_OF_CONTROLLERS = ("controller.listener.names", "listener.security.protocol.map")
_PORT_MAX = 65_535


class BrokerSlot(NamedTuple):
    """One broker of the host: its id, and the settings that differ from those of the host."""

    id: int
    settings: Mapping[str, str]


def allocate(config: BrokerConfig, *, host: str, cluster_id: str) -> list[BrokerSlot]:
    """Return the brokers of the host named `host`.

    `cluster_id` is the id of a new cluster that consists of this host only, with the first broker
    as its only voter. Raises `InvalidConfig`.
    """
    cluster = make_cluster_config(config)
    if not cluster.is_broker:
        raise InvalidConfig(
            f"{SETTING} is {config[SETTING]}, but process.roles does not include broker. Run a"
            " controller without this setting."
        )
    shared = {SETTING: "1"}
    shared |= {name: config.explicit[name] for name in _OF_CONTROLLERS if name in config.explicit}
    if not config["broker.rack"]:
        shared["broker.rack"] = host
    if cluster.voters is None:
        shared["controller.quorum.voters"] = _make_single_voter(config, cluster.listener, host)
        if cluster.cluster_id is None:
            shared["shoal.cluster.id"] = cluster_id
    voters = cluster.voters.voters if cluster.voters is not None else {config.node_id: None}
    slots = []
    for number in range(config[SETTING]):
        id = config.node_id + number
        is_voter = id in voters or (number == 0 and not cluster.clustered)
        settings = shared | {
            "node.id": str(id),
            "log.dirs": str(Path(config.data_dir) / str(id)),
            "process.roles": config.explicit.get("process.roles", "broker,controller")
            if is_voter or number == 0
            else "broker",
        }
        if "broker.id" in config.explicit:
            settings["broker.id"] = str(id)
        slots.append(
            BrokerSlot(
                id, settings | _build_listener_settings(config, number, is_voter or number == 0)
            )
        )
    _check_ports(slots)
    return slots


def _make_single_voter(config: BrokerConfig, listener: str, host: str) -> str:
    (endpoint,) = [
        candidate for candidate in config.listeners if candidate.name == listener
    ] or config.listeners[:1]
    advertised = config.advertised.get(endpoint.name, endpoint)
    if not advertised.port:
        raise InvalidConfig(
            f"{SETTING} is {config[SETTING]}, but listener {endpoint.name} takes any free port."
            " Give it a port, so that the brokers of the host can find each other."
        )
    name = host if advertised.host in ("", "0.0.0.0", "::") else advertised.host
    return f"{config.node_id}@{bracket_host(name)}:{advertised.port}"


def _build_listener_settings(
    config: BrokerConfig, number: int, is_controller: bool
) -> dict[str, str]:
    """Return the settings of the listeners of broker `number`. Only a controller gets listeners
    for controllers."""
    controller_names = {name.upper() for name in config["controller.listener.names"] or ()}
    listeners = [
        listener
        for listener in config.listeners
        if is_controller or listener.name not in controller_names
    ]
    settings = {
        "listeners": ",".join(
            _shift_port(listener, number) for listener in listeners or config.listeners
        )
    }
    advertised = [
        config.advertised[listener.name]
        for listener in listeners
        if listener.name in config.advertised
    ]
    if advertised:
        settings["advertised.listeners"] = ",".join(
            _shift_port(listener, number) for listener in advertised
        )
    metrics = config.metrics_listener
    if metrics is not None:
        settings["shoal.metrics.listener"] = _shift_port(metrics, number).partition("://")[2]
    return settings


def _shift_port(endpoint: Endpoint, number: int) -> str:
    port = endpoint.port + number if endpoint.port else 0
    if port > _PORT_MAX:
        raise InvalidConfig(
            f"Port {endpoint.port} of {endpoint.name} is too high for {number + 1} brokers"
            f" ({SETTING}): the last broker would have no port. Choose a lower port."
        )
    return f"{endpoint.name}://{bracket_host(endpoint.host)}:{port}"


def _check_ports(slots: list[BrokerSlot]) -> None:
    """Raise `InvalidConfig` if two brokers listen at the same port."""
    slot_by_port: dict[str, tuple[int, str]] = {}
    for slot in slots:
        texts = slot.settings["listeners"].split(",")
        if "shoal.metrics.listener" in slot.settings:
            texts.append("metrics://" + slot.settings["shoal.metrics.listener"])
        for text in texts:
            name, _, address = text.partition("://")
            port = address.rpartition(":")[2]
            if port != "0" and port in slot_by_port:
                other_id, its = slot_by_port[port]
                raise InvalidConfig(
                    f"Broker {other_id} ({its}) and broker {slot.id} ({name}) would both listen at"
                    f" port {port}. Each of the {len(slots)} brokers ({SETTING}) takes the next"
                    f" port of each listener. Choose ports that are at least {len(slots)} apart."
                )
            slot_by_port[port] = (slot.id, name)


def find_data_dir_conflict(config: BrokerConfig) -> str | None:
    """Return the message if the data directory of the host has the data of a single broker."""
    if not (Path(config.data_dir) / "meta.properties").exists():
        return None
    return (
        f"{config.data_dir} has the data of a single broker. With {SETTING}, each broker has a"
        f" subdirectory. Stop the broker and move its data to {config.data_dir}/{config.node_id},"
        " or choose another directory by --data-dir."
    )


def read_cluster_id(config: BrokerConfig) -> str | None:
    """Return the cluster id in the first broker's data directory, or None if it is new."""
    try:
        text = (Path(config.data_dir) / str(config.node_id) / "meta.properties").read_text()
    except OSError:
        return None
    properties = dict(line.partition("=")[::2] for line in text.splitlines())
    return properties.get("cluster.id")

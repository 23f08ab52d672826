"""Several brokers on one host: which settings each has (`shoal.brokers.per.host`).

What a user sets is the first broker's. The next ones have the next ids, the next ports of every
listener and of the metrics, and data directories beside the first one's. All name the host as their
rack, so that no two replicas of a partition are on one host while there are others. Pure: who runs
them is `host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shoal.server.cluster_config import cluster_config
from shoal.server.config import BrokerConfig, Endpoint, InvalidConfig, bracketed

SETTING = "shoal.brokers.per.host"
#: What `controller_listener` may have set, and no flag has.
_OF_CONTROLLERS = ("controller.listener.names", "listener.security.protocol.map")
_PORT_MAX = 65_535


class BrokerSlot(NamedTuple):
    """One broker of the host: its id, and its settings where they are not those of the host."""

    id: int
    settings: Mapping[str, str]


def allocate(config: BrokerConfig, *, host: str, cluster_id: str) -> list[BrokerSlot]:
    """The brokers of a host of that name. `cluster_id` is for a cluster that has this host alone,
    whose first broker is its only voter. Raises `InvalidConfig`."""
    cluster = cluster_config(config)
    if not cluster.is_broker:
        raise InvalidConfig(
            f"{SETTING} is {config[SETTING]}, and process.roles has no broker: run a controller by"
            " itself."
        )
    shared = {SETTING: "1"}
    shared |= {name: config.given[name] for name in _OF_CONTROLLERS if name in config.given}
    if not config["broker.rack"]:
        shared["broker.rack"] = host
    if cluster.voters is None:
        shared["controller.quorum.voters"] = _single_voter(config, cluster.listener, host)
        if cluster.cluster_id is None:
            shared["shoal.cluster.id"] = cluster_id
    voters = cluster.voters.voters if cluster.voters is not None else {config.node_id: None}
    found = []
    for number in range(config[SETTING]):
        id = config.node_id + number
        is_voter = id in voters or (number == 0 and not cluster.clustered)
        settings = shared | {
            "node.id": str(id),
            "log.dirs": str(Path(config.data_dir) / str(id)),
            "process.roles": config.given.get("process.roles", "broker,controller")
            if is_voter or number == 0
            else "broker",
        }
        if "broker.id" in config.given:
            settings["broker.id"] = str(id)
        found.append(
            BrokerSlot(id, settings | _listener_settings(config, number, is_voter or number == 0))
        )
    _check_ports(found)
    return found


def _single_voter(config: BrokerConfig, listener: str, host: str) -> str:
    (found,) = [one for one in config.listeners if one.name == listener] or config.listeners[:1]
    advertised = config.advertised.get(found.name, found)
    if not advertised.port:
        raise InvalidConfig(
            f"{SETTING} is {config[SETTING]}, and the listener {found.name} takes any free port:"
            " give it one, at which the host's brokers find each other."
        )
    name = host if advertised.host in ("", "0.0.0.0", "::") else advertised.host
    return f"{config.node_id}@{bracketed(name)}:{advertised.port}"


def _listener_settings(config: BrokerConfig, number: int, is_controller: bool) -> dict[str, str]:
    """The listeners of the broker of that number; those of controllers are for who may be one."""
    controller_names = {name.upper() for name in config["controller.listener.names"] or ()}
    listeners = [
        one for one in config.listeners if is_controller or one.name not in controller_names
    ]
    found = {"listeners": ",".join(_shifted(one, number) for one in listeners or config.listeners)}
    advertised = [config.advertised[one.name] for one in listeners if one.name in config.advertised]
    if advertised:
        found["advertised.listeners"] = ",".join(_shifted(one, number) for one in advertised)
    metrics = config.metrics_listener
    if metrics is not None:
        found["shoal.metrics.listener"] = _shifted(metrics, number).partition("://")[2]
    return found


def _shifted(endpoint: Endpoint, number: int) -> str:
    port = endpoint.port + number if endpoint.port else 0
    if port > _PORT_MAX:
        raise InvalidConfig(
            f"The port {endpoint.port} of {endpoint.name} is too high for {number + 1} brokers"
            f" ({SETTING}): the last one has no port left. Choose a lower one."
        )
    return f"{endpoint.name}://{bracketed(endpoint.host)}:{port}"


def _check_ports(found: list[BrokerSlot]) -> None:
    """No two brokers listen at one port. Raises `InvalidConfig`."""
    taken: dict[str, tuple[int, str]] = {}
    for slot in found:
        texts = slot.settings["listeners"].split(",")
        if "shoal.metrics.listener" in slot.settings:
            texts.append("metrics://" + slot.settings["shoal.metrics.listener"])
        for text in texts:
            name, _, address = text.partition("://")
            port = address.rpartition(":")[2]
            if port != "0" and port in taken:
                other, its = taken[port]
                raise InvalidConfig(
                    f"Broker {other} ({its}) and broker {slot.id} ({name}) would both listen at"
                    f" port {port}: each of the {len(found)} brokers ({SETTING}) takes the next"
                    " port of every listener, so leave as many between them."
                )
            taken[port] = (slot.id, name)


def data_dir_conflict(config: BrokerConfig) -> str | None:
    """Why the host's directory is that of a single broker, or None."""
    if not (Path(config.data_dir) / "meta.properties").exists():
        return None
    return (
        f"{config.data_dir} has the data of a single broker, and with {SETTING} each broker has a"
        f" directory of its own in it: move what is in there to {config.data_dir}/{config.node_id}"
        " (while no broker runs), or name another by --data-dir."
    )


def existing_cluster_id(config: BrokerConfig) -> str | None:
    """The id of the cluster that the first broker's directory was made for, if it was."""
    try:
        text = (Path(config.data_dir) / str(config.node_id) / "meta.properties").read_text()
    except OSError:
        return None
    found = dict(line.partition("=")[::2] for line in text.splitlines())
    return found.get("cluster.id")

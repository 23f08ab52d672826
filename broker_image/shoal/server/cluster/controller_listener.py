"""A listener for controllers, for nodes whose settings name none.

Kafka demands `controller.listener.names`. Two cases leave no doubt about it: the voters have this
node at a port that no listener has, and several brokers of one host that form a cluster alone.
"""

from __future__ import annotations

from shoal.metadata import configs
from shoal.server.cluster_config import CONTROLLER, cluster_config
from shoal.server.config import BrokerConfig, Endpoint, InvalidConfig, bracketed

NAME = "CONTROLLER"
_LOOPBACK = "127.0.0.1"


def with_controller_listener(config: BrokerConfig) -> BrokerConfig:
    """The settings with `CONTROLLER` among the listeners, where that case is given; else as they
    are. Raises `InvalidConfig`."""
    if config["controller.listener.names"] or CONTROLLER not in config["process.roles"]:
        return config
    if any(listener.name == NAME for listener in config.listeners):
        raise InvalidConfig(
            f"listeners has {NAME}, and controller.listener.names is empty: set"
            f" controller.listener.names={NAME}, or give the listener another name."
        )
    first, voters = config.listeners[0], cluster_config(config).voters
    if voters is not None:
        mine = voters.voters.get(config.node_id)
        if mine is None:
            return config
        known = mine.endpoints[0]
        advertised = config.advertised.values()
        if known.port in [one.port for one in (*config.listeners, *advertised)]:
            return config
        return _added(config, Endpoint(NAME, first.host, known.port), known.host)
    brokers = config["shoal.brokers.per.host"]
    if brokers > 1 and first.port:
        return _added(config, Endpoint(NAME, _LOOPBACK, first.port + brokers), _LOOPBACK)
    return config


def _added(config: BrokerConfig, endpoint: Endpoint, host: str) -> BrokerConfig:
    """With a listener at `endpoint`, which other nodes reach at `host`."""
    protocols = config["listener.security.protocol.map"]
    texts = {
        "controller.listener.names": NAME,
        "listeners": ",".join(_text(one) for one in (*config.listeners, endpoint)),
        "listener.security.protocol.map": f"{protocols},{NAME}:PLAINTEXT",
    }
    if host != endpoint.host:
        told = (*config.advertised.values(), endpoint._replace(host=host))
        texts["advertised.listeners"] = ",".join(_text(one) for one in told)
    given = {**config.given, **texts}
    return BrokerConfig(given, configs.broker_values(configs.Layers({}, {}, given)))


def _text(endpoint: Endpoint) -> str:
    return f"{endpoint.name}://{bracketed(endpoint.host)}:{endpoint.port}"

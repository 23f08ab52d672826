"""The listener for controllers of nodes whose configs name none.

Kafka requires `controller.listener.names`. Here it is derived in two cases: the voters have this
node at a port that no listener has, or the brokers of one host form their own cluster.
"""

from __future__ import annotations

from shoal.metadata import configs
from shoal.server.cluster_config import CONTROLLER, make_cluster_config
from shoal.server.config import BrokerConfig, Endpoint, InvalidConfig, bracket_host
from shoal.server.listener_security import PREFIX

NAME = "CONTROLLER"
_LOOPBACK = "127.0.0.1"


def with_controller_listener(config: BrokerConfig) -> BrokerConfig:
    """Return the configs, with a listener `CONTROLLER` if one can be derived.

    Raises `InvalidConfig`.
    """
    if config["controller.listener.names"] or CONTROLLER not in config["process.roles"]:
        return config
    if any(listener.name == NAME for listener in config.listeners):
        raise InvalidConfig(
            f"listeners has {NAME}, and controller.listener.names is empty: set"
            f" controller.listener.names={NAME}, or give the listener another name."
        )
    first, voters = config.listeners[0], make_cluster_config(config).voters
    if voters is not None:
        mine = voters.voters.get(config.node_id)
        if mine is None:
            return config
        voter_endpoint = mine.endpoints[0]
        advertised = config.advertised.values()
        if voter_endpoint.port in [endpoint.port for endpoint in (*config.listeners, *advertised)]:
            return config
        return _add_listener(
            config, Endpoint(NAME, first.host, voter_endpoint.port), voter_endpoint.host
        )
    brokers = config["shoal.brokers.per.host"]
    if brokers > 1 and first.port:
        return _add_listener(config, Endpoint(NAME, _LOOPBACK, first.port + brokers), _LOOPBACK)
    return config


def _add_listener(config: BrokerConfig, endpoint: Endpoint, host: str) -> BrokerConfig:
    """Return the configs with a listener at `endpoint`, which other nodes reach at `host`.

    It is protected like the listener for brokers, unless configs set its protocol.
    """
    protocols = config["listener.security.protocol.map"]
    texts = {
        "controller.listener.names": NAME,
        "listeners": ",".join(
            _format_endpoint(listener) for listener in (*config.listeners, endpoint)
        ),
    }
    if NAME not in config.security_protocols:
        like = make_cluster_config(config).inter_broker
        protocol = config.security_protocols[like]
        texts["listener.security.protocol.map"] = f"{protocols},{NAME}:{protocol.name}"
        from_prefix, prefix = (f"{PREFIX}{name.lower()}." for name in (like, NAME))
        texts |= {
            prefix + name.removeprefix(from_prefix): text
            for name, text in config.explicit.items()
            if name.startswith(from_prefix)
            and prefix + name.removeprefix(from_prefix) not in config.explicit
        }
    if host != endpoint.host:
        advertised = (*config.advertised.values(), endpoint._replace(host=host))
        texts["advertised.listeners"] = ",".join(
            _format_endpoint(listener) for listener in advertised
        )
    explicit = {**config.explicit, **texts}
    return BrokerConfig(
        explicit, configs.resolve_broker_values(configs.ConfigLayers({}, {}, explicit))
    )


def _format_endpoint(endpoint: Endpoint) -> str:
    return f"{endpoint.name}://{bracket_host(endpoint.host)}:{endpoint.port}"

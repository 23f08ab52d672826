"""The static configs of a broker: Kafka's property names, from flags, environment and a file.

A flag takes precedence over the environment, and the environment over the file. A variable is
`SHOAL_` and the name in capitals, with `_` for `.` (`SHOAL_LOG_RETENTION_MS`). All configs are
checked before the broker writes anything. `InvalidConfig` names an unknown config or a bad value,
and its source.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.client import config_providers
from shoal.client.errors import SecurityError
from shoal.client.properties import CLIENT_PREFIX, parse_properties
from shoal.metadata import broker_rules, configs, listener_configs
from shoal.metadata.config_keys import ConfigError, UnknownConfig
from shoal.server.listener_security import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PREFIX = "SHOAL_"
#: Kubernetes sets such variables for each Service of the namespace. A Service named "shoal" leads
#: to SHOAL_PORT, SHOAL_SERVICE_HOST and SHOAL_PORT_9092_TCP_ADDR, which are not configs. The name
#: of a port has up to 15 characters.
SERVICE_LINK = re.compile(
    r".*SERVICE_(HOST|PORT(_\w{1,15})?)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)
#: Variables of the flags of the command line.
FLAG_VARIABLES = (
    "SHOAL_ADD_SCRAM",
    "SHOAL_BOOTSTRAP",
    "SHOAL_BOOTSTRAP_SERVERS",
    "SHOAL_CLUSTER_DIR",
    "SHOAL_COMMAND_CONFIG",
    "SHOAL_CONFIG",
    "SHOAL_DATA_DIR",
    "SHOAL_LISTENER",
    "SHOAL_PROFILE",
)
#: A variable of an override: `listener.name.my-listener.ssl.key.password` is
#: SHOAL_LISTENER_NAME_MY_LISTENER_SSL_KEY_PASSWORD.
#: The name of the metrics listener in the configs of TLS (`listener.name.metrics.ssl.…`).
METRICS = "METRICS"
_OVERRIDE_VARIABLE = PREFIX + "LISTENER_NAME_"
_LISTENER = re.compile(r"(?:([A-Za-z0-9_\-]+)://)?(?:\[([0-9a-fA-F:.%]+)\]|([^:\[\]]*)):(\d+)")
#: References in a file: `${env:NAME}`, `${directory:FOLDER:FILE}` and `${file:FILE:NAME}`.
_REFERENCE = re.compile(
    r"\$\{env:(?P<variable>[A-Za-z_]\w*)\}"
    r"|\$\{(?P<kind>directory|file):(?P<path>[^}:]+):(?P<key>[^}:]+)\}",
    re.ASCII,
)


class Endpoint(NamedTuple):
    """A listener: its name, the host or address, the port."""

    name: str
    host: str
    port: int


class InvalidConfig(Exception):
    """A sentence that names the config, its source and the problem."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All broker configs by name, typed. `explicit` has the texts of those that were set."""

    explicit: Mapping[str, str]
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def node_id(self) -> int:
        old: int = self.values["broker.id"]
        return old if old >= 0 else int(self.values["node.id"])

    @property
    def data_dir(self) -> str:
        """The directory of all logs."""
        directories: tuple[str, ...] = self.values["log.dirs"] or self.values["log.dir"]
        return directories[0]

    @property
    def listeners(self) -> list[Endpoint]:
        return [parse_endpoint("listeners", text) for text in self.values["listeners"]]

    @property
    def advertised(self) -> dict[str, Endpoint]:
        """The advertised addresses that differ from the listener, by listener name."""
        texts = self.values["advertised.listeners"] or ()
        return {e.name: e for e in (parse_endpoint("advertised.listeners", text) for text in texts)}

    @property
    def security_protocols(self) -> dict[str, SecurityProtocol]:
        """The security protocol of each listener name. Raises `InvalidConfig`."""
        protocols = {}
        for pair in filter(None, self.values["listener.security.protocol.map"].split(",")):
            name, _, protocol = (part.strip().upper() for part in pair.partition(":"))
            if not name or protocol not in SecurityProtocol.__members__:
                raise InvalidConfig(
                    f"listener.security.protocol.map has {pair.strip()!r}, which is not of the form"
                    f" NAME:PROTOCOL with one of {', '.join(SecurityProtocol.__members__)}."
                )
            protocols[name] = SecurityProtocol[protocol]
        if "listener.security.protocol.map" not in self.explicit:
            # As in Kafka, listeners for controllers are PLAINTEXT unless another listener by its
            # name is protected.
            controllers = [n.upper() for n in self.values["controller.listener.names"] or ()]
            names = [*controllers, *(listener.name for listener in self.listeners)]
            if not set(names) & (SecurityProtocol.__members__.keys() - {"PLAINTEXT"}):
                protocols |= dict.fromkeys(controllers, SecurityProtocol.PLAINTEXT)
        return protocols

    @property
    def metrics_listener(self) -> Endpoint | None:
        text = self.values["shoal.metrics.listener"]
        return parse_endpoint("shoal.metrics.listener", text) if text else None


def resolve(
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file_text: str | None = None,
    file_name: str = "",
) -> BrokerConfig:
    """Return the effective configs. Raises `InvalidConfig`."""
    sources = [
        ("a flag", dict(flags)),
        ("the environment", from_environment(environment)),
        (
            file_name,
            dict(_resolve_references(parse_properties(file_text or ""), environment, file_name)),
        ),
    ]
    explicit: dict[str, str] = {}
    for source, texts in reversed(sources):
        for name, text in texts.items():
            check(name, text, source)
            explicit[name] = text
    explicit = _with_known_listeners(explicit)
    config = BrokerConfig(
        explicit, configs.resolve_broker_values(configs.ConfigLayers({}, {}, explicit))
    )
    _check_consistency(config)
    return config


def check(name: str, text: str, source: str) -> None:
    """Raise `InvalidConfig` for an unknown broker config or an invalid value."""
    try:
        listener_configs.parse({name: text})
    except UnknownConfig:
        override = listener_configs.split_name(name)
        target = name if override is None else override.target
        near = _find_similar(target, configs.BROKER)
        hint = f" Did you mean {name.removesuffix(target)}{near[0]}?" if near else ""
        raise InvalidConfig(f"There is no broker config {name}, set by {source}.{hint}") from None
    except ConfigError as error:
        raise InvalidConfig(f"{error} (set by {source})") from None


def to_variable_name(name: str) -> str:
    """Return the environment variable of a config."""
    return PREFIX + re.sub(r"[.\-]", "_", name.removeprefix("shoal.")).upper()


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the configs among the variables. Raises `InvalidConfig` for an unknown one."""
    names = {to_variable_name(name): name for name in configs.BROKER}
    texts = {}
    for variable_name in sorted(environment):
        if not variable_name.startswith(PREFIX) or variable_name in FLAG_VARIABLES:
            continue
        name = names.get(variable_name) or _parse_override(variable_name, names)
        if name is not None:
            texts[name] = environment[variable_name]
        elif not (
            variable_name.startswith(CLIENT_PREFIX)
            or SERVICE_LINK.fullmatch(variable_name.removeprefix(PREFIX))
        ):
            near = _find_similar(variable_name, names)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidConfig(
                f"The environment variable {variable_name} names no broker config.{hint}"
            )
    return texts


def _parse_override(name: str, names: Mapping[str, str]) -> str | None:
    """Return the `listener.name.…` config of an environment variable, or None.

    The listener's name is what stands before the config and the mechanism, with `_` for `-`.
    """
    if not name.startswith(_OVERRIDE_VARIABLE):
        return None
    words = name.removeprefix(_OVERRIDE_VARIABLE).split("_")
    for index in range(1, len(words)):
        target = names.get(PREFIX + "_".join(words[index:]))
        if target is not None:
            break
    else:
        return None
    listener = "_".join(words[:index]).lower()
    for mechanism in sorted(listener_configs.MECHANISMS):
        suffix = "_" + mechanism.replace("-", "_")
        if target.startswith("sasl.") and listener.endswith(suffix):
            return f"{listener_configs.PREFIX}{listener.removesuffix(suffix)}.{mechanism}.{target}"
    return f"{listener_configs.PREFIX}{listener}.{target}"


def _resolve_references(
    lines: Iterator[tuple[str, str]], environment: Mapping[str, str], file_name: str
) -> Iterator[tuple[str, str]]:
    """Yield the configs of a file, with its references replaced by variables and by the content of
    files (KIP-297, KIP-887).

    Raises `InvalidConfig` for a variable that is not set and a file that cannot be read.
    """

    def resolve_reference(name: str, match: re.Match[str]) -> str:
        variable = match["variable"]
        if variable is None:
            try:
                return config_providers.read_value(
                    name, match["kind"], match["path"], match["key"]
                ).reveal()
            except SecurityError as error:
                raise InvalidConfig(
                    f"{error}. Create the file, or correct the reference in {file_name}."
                ) from None
        if variable not in environment:
            raise InvalidConfig(
                f"{name} in {file_name} has ${{env:{variable}}}, but the environment variable"
                f" {variable} is not set."
            )
        return environment[variable]

    for name, text in lines:
        yield name, _REFERENCE.sub(partial(resolve_reference, name), text)


def parse_endpoint(setting: str, text: str) -> Endpoint:
    """Parse NAME://host:port; the default name is PLAINTEXT. Raises `InvalidConfig`."""
    match = _LISTENER.fullmatch(text.strip())
    if match is None or int(match[4]) > 65535:
        raise InvalidConfig(
            f"{setting} has {text!r}, which is not of the form PLAINTEXT://host:port."
            " Write an IPv6 address in brackets."
        )
    return Endpoint((match[1] or "PLAINTEXT").upper(), match[2] or match[3], int(match[4]))


def bracket_host(host: str) -> str:
    """Return a host for use before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def format_address(host: str, port: int) -> str:
    """Return host:port for a client; an empty host means all addresses."""
    return f"{bracket_host(host) or '0.0.0.0'}:{port}"


def check_exposure(config: BrokerConfig) -> None:
    """Check that other hosts reach encrypted listeners only, unless the user accepts the others.

    Raises `InvalidConfig`.
    """
    if config["shoal.insecure.listeners.enable"]:
        return
    protocols = config.security_protocols
    for listener in config.listeners:
        protocol = protocols.get(listener.name, SecurityProtocol.PLAINTEXT)
        if protocol.is_tls or is_loopback(listener.host):
            continue
        is_open = protocol is SecurityProtocol.PLAINTEXT
        problem = "neither encrypted nor authenticated" if is_open else "not encrypted"
        raise InvalidConfig(
            f"The listener {listener.name} at {format_address(listener.host, listener.port)} can be"
            f" reached from other hosts, and its protocol {protocol.name} is {problem}. Give it"
            f" {'SSL or SASL_SSL' if is_open else 'SASL_SSL'} in listener.security.protocol.map,"
            " listen on 127.0.0.1, or accept the risk with --insecure"
            " (shoal.insecure.listeners.enable=true)."
        )


def is_loopback(host: str) -> bool:
    """Whether only this host can connect to a listener at `host`."""
    if host.lower() == "localhost":
        return True
    try:
        ip_address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip_address, "ipv4_mapped", None)
    return (mapped or ip_address).is_loopback


def _check_consistency(config: BrokerConfig) -> None:
    """Check configs against each other. Raises `InvalidConfig`."""
    _check_log_directories(config)
    names = _check_names(config)
    _check_protocols(config, names)
    _check_advertised(config, names)
    _ = config.metrics_listener
    reason = broker_rules.find_contradiction(config.values) or broker_rules.find_foreign_cordon(
        config.values
    )
    if reason is not None:
        raise InvalidConfig(f"{reason[:-1] if reason[-1] == '.' else reason}.")


def _check_log_directories(config: BrokerConfig) -> None:
    for name in ("log.dirs", "log.dir"):
        if len(config[name] or ()) > 1:
            raise InvalidConfig(
                f"{name} names {len(config[name])} directories; this broker keeps its logs in"
                " one. Keep one directory. To use several volumes, combine them with LVM or RAID."
            )
    if not config["log.dirs"] and not config["log.dir"]:
        raise InvalidConfig("log.dir is empty: a broker needs a directory for its logs.")


def _check_names(config: BrokerConfig) -> list[str]:
    """Return the names of the listeners, each of which is unique."""
    listeners = config.listeners
    if not listeners:
        raise InvalidConfig("listeners is empty: a broker needs an address to listen on.")
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise InvalidConfig("listeners contains a name twice. Give each listener its own name.")
    return names


def _check_protocols(config: BrokerConfig, names: list[str]) -> None:
    protocols = config.security_protocols
    for name in names:
        if name not in protocols:
            raise InvalidConfig(
                f"The listener {name} has no security protocol: name it in"
                " listener.security.protocol.map."
            )


def _with_known_listeners(explicit: Mapping[str, str]) -> dict[str, str]:
    """Return the configs with each override under the name of its listener.

    A variable has `_` where the listener's name may have `-`. Raises `InvalidConfig` for an
    override of a listener that no config names.
    """
    values = configs.resolve_broker_values(configs.ConfigLayers({}, {}, explicit))
    config = BrokerConfig(explicit, values)
    listener_names = [listener.name for listener in config.listeners]
    listener_names += [name.upper() for name in values["controller.listener.names"] or ()]
    listener_names += [name.upper() for name in (values["inter.broker.listener.name"],) if name]
    listener_names += [*config.security_protocols, METRICS]
    spellings = {name.lower(): name.lower() for name in listener_names}
    by_variable = {name.replace("-", "_"): name for name in spellings}
    renamed = {}
    for name, text in explicit.items():
        override = listener_configs.split_name(name)
        if override is None:
            renamed[name] = text
            continue
        listener = spellings.get(override.listener) or by_variable.get(override.listener)
        if listener is None:
            near = _find_similar(override.listener, spellings)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidConfig(
                f"{name} is for a listener {override.listener}, which neither listeners nor"
                f" listener.security.protocol.map has.{hint}"
            )
        suffix = name.removeprefix(f"{listener_configs.PREFIX}{override.listener}")
        renamed[f"{listener_configs.PREFIX}{listener}{suffix}"] = text
    return renamed


def _check_advertised(config: BrokerConfig, names: list[str]) -> None:
    for name, advertised in config.advertised.items():
        if name not in names:
            raise InvalidConfig(
                f"advertised.listeners has {name}, which is not in listeners. Add it."
            )
        if advertised.host in ("", "0.0.0.0", "::"):
            raise InvalidConfig(
                "advertised.listeners has an address that no client can connect to:"
                f" {advertised.host or 'none'}. Name a host that clients reach."
            )


def _find_similar(word: str, words: Iterable[str]) -> list[str]:
    """Return the most similar word, for the error about a name that does not exist."""
    import difflib  # Brokers without such mistakes do without it.

    return difflib.get_close_matches(word, list(words), n=1)

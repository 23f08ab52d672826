"""Definitions of configs: name, type, default, check and effect.

The tables (`config_tables`) are text with one row per config (see `parse_table`). `configs` parses
values against them. Types, ranges and refusals follow Kafka's ConfigDef, so that users see the
errors they know from Kafka.

Each config has a `ConfigEffect`:

* Most configs are applied. A test observes the effect of each.
* Some configs tune machinery that this broker lacks: threads, JMX, Java classes. They are accepted,
  DescribeConfigs shows them, and they change nothing.
* Some configs would promise a feature that is missing: tiered storage, credentials without TLS.
  They are refused by name unless set to their default.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from shoal.security import jaas, revocations
from shoal.security.principal_mapping import PrincipalMapper

#: A check of a typed value that returns the reason for a refusal, or None.
Check = Callable[[Any], str | None]

_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)?")
_THROTTLED = re.compile(r"\d+:\d+")
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DURATION = re.compile(
    r"([-+]?)P(?=.)(?:([-+]?\d+)D)?"
    r"(?:T(?=.)(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?"
)
#: What `\s` is in Java's patterns, by which Kafka splits lists.
_JAVA_SPACE = " \t\n\v\f\r"
#: Java's largest values by their names in the rows. They mean no limit.
_LIMITS = {
    "int-max": str((1 << 31) - 1),
    "long-max": str((1 << 63) - 1),
    "double-max": "1.7976931348623157E308",
}
#: The authorizer whose rules `shoal.security.authorizer` has.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
#: The placeholder of a password in errors.
HIDDEN = object()


class ConfigError(ValueError):
    """An invalid config: `name`, its `value` as text, and the `reason`."""

    def __init__(self, name: str, value: object, reason: str) -> None:
        shown = "[hidden]" if value is HIDDEN else value
        super().__init__(f"Invalid value {shown} for configuration {name}: {reason}")
        self.name, self.value, self.reason = name, value, reason


class UnknownConfig(ConfigError):
    """A config name that the table does not have."""

    def __init__(self, table_name: str, name: str) -> None:
        ValueError.__init__(self, f"Unknown {table_name} config name: {name}")
        self.name, self.value, self.reason = name, None, "unknown name"


class ConfigType(IntEnum):
    """Value types; the numbers are DescribeConfigs' `config_type` (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


class ConfigScope(Enum):
    """The scope at which a running broker's config can be altered (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigEffect(Enum):
    """The effect of a config on this broker."""

    APPLIED = "applied"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Range:
    """At least `low`, at most `high`, both included."""

    low: float
    high: float | None = None

    def __call__(self, value: Any) -> str | None:
        if value is None:
            return None
        if value < self.low:
            return f"Value must be at least {self.low}"
        if self.high is not None and value > self.high:
            return f"Value must be no more than {self.high}"
        return None

    def __str__(self) -> str:
        return f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few strings. Every item of a list must be one of them."""

    values: tuple[str, ...]
    any_case: bool = False

    def __call__(self, value: Any) -> str | None:
        for item in value if isinstance(value, tuple) else (value,):
            is_known = item.lower() in map(str.lower, self.values) if self.any_case else False
            if not is_known and item not in self.values:
                return f"String must be one of: {', '.join(self.values)}"
        return None

    def __str__(self) -> str:
        return ", ".join(self.values)


def check_gzip_level(value: Any) -> str | None:
    """1 to 9, or -1 for the codec's default"""
    if value == -1 or 1 <= value <= 9:
        return None
    return "Value must be between 1 and 9 or equal to -1"


def check_throttled_replicas(value: Any) -> str | None:
    """partition:broker,partition:broker… or *"""
    if value == ("*",) or all(_THROTTLED.fullmatch(item) for item in value):
        return None
    return "Replicas are listed as partitionId:brokerId,partitionId:brokerId, or * for all"


def check_per_ip(value: Any) -> str | None:
    """address:count,address:count"""
    try:
        parse_counts_by_address(value)
    except ValueError:
        return "exceptions are listed as address:count,address:count"
    return None


def parse_counts_by_address(text: str) -> dict[str, int]:
    """Parse address:count,address:count into counts by IP address. Raises `ValueError`."""
    counts = {}
    for item in filter(None, map(str.strip, text.split(","))):
        address, _, count = item.rpartition(":")
        counts[str(ipaddress.ip_address(address.strip("[]")))] = int(count)
    return counts


#: Kafka's classes that verify bearer tokens: signed ones (with an older name), and any.
SIGNED_TOKENS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
UNSECURED_TOKENS = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured"
    ".OAuthBearerUnsecuredValidatorCallbackHandler"
)


def check_token_handler(value: Any) -> str | None:
    """OAuthBearerValidatorCallbackHandler or OAuthBearerUnsecuredValidatorCallbackHandler"""
    if value in (*SIGNED_TOKENS, UNSECURED_TOKENS):
        return None
    return f"Java classes cannot be loaded. It is {SIGNED_TOKENS[0]} or {UNSECURED_TOKENS}"


def check_jaas_config(value: Any) -> str | None:
    """module.Class required name="value";"""
    try:
        if value:
            jaas.parse(value)
    except jaas.JaasError as error:
        return f'{error}. It is a text such as: module.Class required name="value";'
    return None


def check_principal_rules(value: Any) -> str | None:
    """RULE:pattern/replacement/[LU] or DEFAULT, separated by commas"""
    try:
        PrincipalMapper(value)
    except ValueError as error:
        return str(error)
    return None


def check_revoked_subjects(value: Any) -> str | None:
    """FROM/UNTIL/SUBJECT,FROM/UNTIL/SUBJECT…"""
    try:
        revocations.parse_by_subject(value)
    except ValueError as error:
        return (
            f"{error}. An entry is FROM/UNTIL/SUBJECT, such as"
            " 2026-11-25T00:00:00Z/2027-11-25T00:00:00Z/CN=ann%2CO=example"
        )
    return None


def check_offset_reset(value: Any) -> str | None:
    """latest, earliest, by_duration:PnDTnHnMn.nS"""
    kind, _, duration = value.partition(":")
    if value in ("latest", "earliest"):
        return None
    if kind == "by_duration" and parse_duration_ms(duration) is not None:
        return None
    return "it is latest, earliest, or by_duration: and a duration such as PT1H30M"


def check_fairness_by(value: Any) -> str | None:
    """none, key, header:NAME"""
    if value in ("none", "key") or (value.startswith("header:") and value != "header:"):
        return None
    return "it is none, key, or header: and the name of a record header, such as header:customer"


def check_tenant_weights(value: Any) -> str | None:
    """tenant:weight,tenant:weight"""
    try:
        weights = list(parse_by_tenant(value).values())
    except ValueError:
        weights = [math.nan]
    if all(0.001 <= weight <= 1000 for weight in weights):
        return None
    return "weights from 0.001 to 1000 are listed as tenant:weight,tenant:weight"


def check_tenant_limits(value: Any) -> str | None:
    """tenant:number,tenant:number"""
    try:
        limits = list(parse_by_tenant(value).values())
    except ValueError:
        limits = [math.nan]
    if all(0 <= limit < 1 << 31 for limit in limits):
        return None
    return "limits from 0, which is none, are listed as tenant:number,tenant:number"


def parse_by_tenant(items: tuple[str, ...]) -> dict[bytes, float]:
    """Parse items tenant:number into numbers by name. A name may contain colons, and is empty for
    records without a tenant. Raises `ValueError`."""
    numbers = {}
    for item in items:
        name, colon, number = item.rpartition(":")
        if not colon or "_" in number:
            raise ValueError(f"{item} is not tenant:number")
        numbers[name.encode()] = float(number)
    return numbers


def parse_duration_ms(text: str) -> int | None:
    """Return the milliseconds of an ISO 8601 duration PnDTnHnMn.nS, as Java parses it; None if it
    is invalid or negative.
    """
    match = _DURATION.fullmatch(text.upper())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:5])
    nanos = int((match[6] or "").ljust(9, "0")) * (-1 if (match[5] or "").startswith("-") else 1)
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanos
    total = -total if match[1] == "-" else total
    return None if total < 0 else total // 1_000_000


def check_authorizer(value: Any) -> str | None:
    """empty, org.apache.kafka.metadata.authorizer.StandardAuthorizer"""
    if value in ("", STANDARD_AUTHORIZER):
        return None
    return f"Java authorizers cannot be loaded. Set {STANDARD_AUTHORIZER}, or leave it empty"


def check_principals(value: Any) -> str | None:
    """type:name;type:name"""
    for principal in split_principals(value):
        kind, colon, name = principal.partition(":")
        if not (kind and colon and name):
            return "principals are listed as User:name;User:name"
    return None


def split_principals(text: str) -> list[str]:
    """Return the principals in a text that separates them by semicolons."""
    return [principal.strip() for principal in text.split(";") if principal.strip()]


def check_key_id(value: Any) -> str | None:
    """empty, or letters, digits, dots, dashes and underscores"""
    if not value or _KEY_ID.fullmatch(value):
        return None
    return (
        "the id of a key is the name of its file: a letter or a digit, and behind it letters, "
        "digits, dots, dashes and underscores"
    )


_CHECKS: dict[str, Check] = {
    "@authorizer": check_authorizer,
    "@principals": check_principals,
    "@jaas": check_jaas_config,
    "@fairness-by": check_fairness_by,
    "@gzip-level": check_gzip_level,
    "@key-id": check_key_id,
    "@tenant-limits": check_tenant_limits,
    "@tenant-weights": check_tenant_weights,
    "@throttled": check_throttled_replicas,
    "@offset-reset": check_offset_reset,
    "@per-ip": check_per_ip,
    "@principal-rules": check_principal_rules,
    "@revoked-subjects": check_revoked_subjects,
    "@token-handler": check_token_handler,
}


class ConfigSynonym(NamedTuple):
    """A broker config that sets the default of a topic or group config, multiplied by `factor`."""

    name: str
    factor: int = 1


@dataclass(slots=True)
class ConfigKey:
    """One config. `default` is typed; None means unset. `doc` states the unit."""

    name: str
    type: ConfigType
    effect: ConfigEffect = ConfigEffect.APPLIED
    section: str = ""
    scope: ConfigScope = ConfigScope.READ_ONLY
    #: Whether DescribeConfigs leaves it out.
    internal: bool = False
    doc: str = ""
    #: Broker configs that set the default, the strongest first.
    synonyms: tuple[ConfigSynonym, ...] = ()
    #: Broker configs of a group value's minimum and maximum.
    bounds: tuple[str | None, str | None] = (None, None)
    check: Check | None = field(default=None, repr=False)
    default: Any = None

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str | None) -> Any:
        """Return the typed value of `text`, checked. Raises `ConfigError`."""
        value = self.read(text)
        reason = None
        if self.check is not None and value is not None:
            reason = self.check(value)
        if reason is None and self.effect is ConfigEffect.REFUSED and value != self.default:
            reason = f"only its default can be taken. {self.doc}"
        if reason is not None:
            raise self.make_error(text, reason)
        return value

    def read(self, text: str | None) -> Any:
        """Return the typed value of `text`; check only its type."""
        if text is None:
            return None
        text = text.strip()
        if self.type in _BITS:
            return self._parse_integer(text)
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self.make_error(text, "Expected value to be either true or false")
            return text.lower() == "true"
        if self.type is ConfigType.LIST:
            parts = text.split(",") if text else []
            return tuple(dict.fromkeys(part.strip(_JAVA_SPACE) for part in parts))
        if self.type is ConfigType.DOUBLE:
            try:
                number = float(text)
            except ValueError:
                number = math.nan
            if math.isnan(number):
                raise self.make_error(text, "Not a number of type DOUBLE")
            return number
        return text

    def _parse_integer(self, text: str) -> int:
        limit = 1 << _BITS[self.type]
        try:
            value = int(text)
        except ValueError:
            value = limit
        if not -limit <= value < limit or "_" in text:
            raise self.make_error(text, f"Not a number of type {self.type.name}")
        return value

    def make_error(self, text: object, reason: str) -> ConfigError:
        return ConfigError(self.name, HIDDEN if self.sensitive else text, reason)


def format_value(value: Any) -> str | None:
    """Format a typed value as Kafka does."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, float) and value > 1e300:
        return _LIMITS["double-max"]
    return str(value)


def parse_table(text: str, *others: Mapping[str, ConfigKey]) -> dict[str, ConfigKey]:
    """Parse a table, merge others into it, and sort it by name.

    A line `# effect: title` opens a section. A row is `name type default check`, optionally
    followed by `cluster-wide` or `per-broker` (dynamic) and `internal`. Indented lines below a row
    are its description, `= …` a long default, `< broker.config*factor …` its synonyms, `[] low
    high` its bounds. `-` means none.
    """
    keys = [key for other_table in others for key in other_table.values()]
    effect, title = ConfigEffect.APPLIED, ""
    for line in text.strip("\n").split("\n"):
        if line.startswith("# "):
            name, _, title = line[2:].partition(": ")
            effect = ConfigEffect(name)
        elif line.startswith("    "):
            _parse_detail(keys[-1], line.strip())
        else:
            keys.append(_parse_row(line.split(), effect, title))
    keys_by_name = {key.name: key for key in sorted(keys, key=lambda key: key.name)}
    assert len(keys_by_name) == len(keys), "a config is listed twice"
    return keys_by_name


def _parse_row(words: list[str], effect: ConfigEffect, title: str) -> ConfigKey:
    name, kind, default, check, *flags = words
    key = ConfigKey(name, ConfigType[kind.upper()], effect, title)
    key.internal = "internal" in flags
    for scope in (ConfigScope.PER_BROKER, ConfigScope.CLUSTER_WIDE):
        if scope.value in flags:
            key.scope = scope
    key.check = _parse_check(check)
    if default != "-":
        key.default = key.read("" if default == '""' else _LIMITS.get(default, default))
    return key


def _parse_check(text: str) -> Check | None:
    if text == "-":
        return None
    if text.startswith("@"):
        return _CHECKS[text]
    match = _RANGE.fullmatch(text)
    if match is not None:
        return Range(_parse_number(match[1]), _parse_number(match[2]) if match[2] else None)
    return OneOf(tuple(text.lstrip("~").split("|")), any_case=text.startswith("~"))


def _parse_number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _parse_detail(key: ConfigKey, line: str) -> None:
    """Parse one indented line below a row."""
    if line.startswith("< "):
        pairs = [word.partition("*") for word in line[2:].split()]
        key.synonyms = tuple(ConfigSynonym(name, int(factor or 1)) for name, _, factor in pairs)
    elif line.startswith("[] "):
        low, high = line[3:].split()
        key.bounds = (None if low == "-" else low, None if high == "-" else high)
    elif line.startswith("= "):
        key.default = key.read(line[2:])
    else:
        key.doc = f"{key.doc} {line}".lstrip()

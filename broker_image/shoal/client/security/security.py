"""The client's security settings, from properties of the Java client or of librdkafka.

Both name the same things differently: `sasl.jaas.config`, or `sasl.username` and `sasl.password`;
stores, or `ssl.ca.location`. Secrets are `Secret`s, so that no message or traceback shows them.
"""

from __future__ import annotations

import logging
import re
import urllib.parse
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shoal.client.blocking_calls import run_in_thread
from shoal.client.errors import ClientError, SecurityError
from shoal.client.security.oauth import TokenCache
from shoal.client.security.oauth_settings import TOKEN_TIMEOUT_MS, OAuthSettings
from shoal.client.security.scram import DIGESTS
from shoal.client.security.secret import NO_SECRET, Secret
from shoal.client.security.tls import (
    STORE_TYPES,
    TlsContextCache,
    TlsSettings,
    TlsStore,
    format_jks_refusal,
)
from shoal.security import jaas

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

_log = logging.getLogger(__name__)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = ("PLAIN", *DIGESTS, OAUTHBEARER)


_NO_TLS = TlsSettings()


class _SecurityState:
    """What the connections of one client share: its newest context, token and settings."""

    def __init__(self) -> None:
        self.contexts = TlsContextCache()
        self.tokens = TokenCache()
        self.newest: Security | None = None
        self.failure = ""


@dataclass(frozen=True)
class Security:
    """`security.get_protocol` and related properties.

    With `is_token`, `username` and `password` are the id and the HMAC of a delegation token.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str = ""
    password: Secret = NO_SECRET
    is_token: bool = False
    tls: TlsSettings = _NO_TLS
    oauth: OAuthSettings | None = None
    #: Returns the access token of each new connection, instead of `oauth`.
    bearer: Callable[[], Secret] | None = field(default=None, repr=False, compare=False)
    _source: Callable[[], Security] | None = field(default=None, repr=False, compare=False)
    _state: _SecurityState = field(default_factory=_SecurityState, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_one_of("security.protocol", self.protocol, PROTOCOLS)
        if not self.sasl:
            return
        _check_one_of("sasl.mechanism", self.mechanism, MECHANISMS)
        if self.mechanism == OAUTHBEARER:
            if self.oauth is None and self.bearer is None:
                raise SecurityError(
                    "OAUTHBEARER needs a token: set sasl.oauthbearer.token.endpoint.url to the"
                    " address of the identity provider, or to file:// and the path of a token"
                )
            return
        if not self.username:
            raise SecurityError(
                f"{self.protocol} needs a user: set sasl.username and sasl.password, "
                "or sasl.jaas.config"
            )
        if self.is_token and self.mechanism not in DIGESTS:
            raise SecurityError(
                f"a delegation token needs sasl.mechanism {' or '.join(DIGESTS)}, not"
                f" {self.mechanism}"
            )

    @classmethod
    def from_properties(
        cls, load: Callable[[], Mapping[str, Secret]], *, changing: bool
    ) -> Security:
        """Return the settings that the properties of `load` give. Raises `SecurityError`.

        If they may be `changing`, each new connection calls `load` again.
        """
        security = _parse_security(load())
        return replace(security, _source=lambda: _parse_security(load())) if changing else security

    @property
    def sasl(self) -> bool:
        return self.protocol.startswith("SASL")

    @property
    def encrypted(self) -> bool:
        return self.protocol.endswith("SSL")

    def reload(self) -> Security:
        """Return the settings for a new connection, with files read again. It blocks.

        If they cannot be read, or are invalid, the previous ones stay in use.
        """
        if self._source is None:
            return self
        state = self._state
        try:
            reloaded = replace(self._source(), _source=self._source, _state=state)
        except (ClientError, OSError, ValueError) as error:
            if str(error) != state.failure:
                state.failure = str(error)
                _log.warning("the previous properties stay in use: %s", error)
            return state.newest or self
        state.newest, state.failure = reloaded, ""
        return reloaded

    def with_token(self, token_id: str, password: Secret) -> Security:
        """Return these settings with a login by a delegation token, which needs SCRAM.

        Raises `SecurityError` if these settings have no SASL.
        """
        if not self.sasl:
            raise SecurityError(
                f"a delegation token needs SASL, and security.protocol is {self.protocol}"
            )
        mechanism = self.mechanism if self.mechanism in DIGESTS else "SCRAM-SHA-512"
        return Security(self.protocol, mechanism, token_id, password, True, self.tls)

    def with_access_token(self, bearer: Callable[[], Secret]) -> Security:
        """Return these settings with a login by access tokens, which `bearer` returns.

        Raises `SecurityError` if these settings have no SASL.
        """
        if not self.sasl:
            raise SecurityError(
                f"an access token needs SASL, and security.protocol is {self.protocol}"
            )
        return Security(self.protocol, OAUTHBEARER, tls=self.tls, bearer=bearer)

    def make_tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, or None without TLS. It blocks.

        Raises `SecurityError` if files cannot be used.
        """
        return self._state.contexts.get(self.tls) if self.encrypted else None

    async def load_for_connection(self) -> tuple[Security, ssl.SSLContext | None]:
        """Return the settings and the TLS context for a new connection, with files read again."""
        if self._source is None and not self.encrypted:
            return self, None
        return await run_in_thread(self._load)

    async def make_https_context(self) -> ssl.SSLContext:
        """Return a context for an address with https, also if brokers are used without TLS.

        Raises `SecurityError` if files cannot be used.
        """
        return await run_in_thread(lambda: self._state.contexts.get(self.reload().tls))

    def _load(self) -> tuple[Security, ssl.SSLContext | None]:
        reloaded = self.reload()
        return reloaded, reloaded.make_tls_context()

    async def get_access_token(self) -> Secret:
        """Return a token for OAUTHBEARER. Raises `SecurityError` or `LoginUnavailable`."""
        if self.bearer is not None:
            return self.bearer()
        assert self.oauth is not None
        return await self._state.tokens.get(self.oauth)


def _check_one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SecurityError(f"{name} {value!r} is not one of {', '.join(allowed)}")


_JAAS_CONFIG = "sasl.jaas.config"
_CHECK_HOSTNAME = "ssl.endpoint.identification.algorithm"
_TOKEN_ID, _TOKEN_HMAC = "shoal.delegation.token.id", "shoal.delegation.token.hmac"
#: Texts and the properties that set them. If two are set, they must agree.
_TEXTS = {
    "protocol": ("security.protocol",),
    "mechanism": ("sasl.mechanism", "sasl.mechanisms"),
    "username": ("sasl.username", _TOKEN_ID),
    "password": ("sasl.password", _TOKEN_HMAC),
    "key_password": ("ssl.key.password",),
    "truststore_password": ("ssl.truststore.password",),
    "keystore_password": ("ssl.keystore.password",),
    "truststore_type": ("ssl.truststore.type",),
    "keystore_type": ("ssl.keystore.type",),
    "token_url": ("sasl.oauthbearer.token.endpoint.url",),
    "client_id": ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id"),
    "client_secret": (
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.client.secret",
    ),
    "scope": ("sasl.oauthbearer.scope",),
    "extensions": ("sasl.oauthbearer.extensions",),
    "urlencode": ("sasl.oauthbearer.header.urlencode",),
    "token_timeout_ms": ("sasl.login.read.timeout.ms", "sasl.login.connect.timeout.ms"),
}
#: The login modules of `sasl.jaas.config`. Distributions of Spark have Kafka's in other packages.
_MODULES = ("PlainLoginModule", "ScramLoginModule", "OAuthBearerLoginModule")
#: The options of `sasl.jaas.config` that set the same texts.
_JAAS_OPTIONS = {
    "username": "username",
    "password": "password",
    "clientId": "client_id",
    "clientSecret": "client_secret",
    "scope": "scope",
}
#: Certificates and keys: the properties with a path, and those with PEM text.
_STORES = {
    "truststore": (
        ("ssl.ca.location", "ssl.truststore.location"),
        ("ssl.ca.pem", "ssl.truststore.certificates"),
    ),
    "certificate": (
        ("ssl.certificate.location", "ssl.keystore.location"),
        ("ssl.certificate.pem", "ssl.keystore.certificate.chain"),
    ),
    "key": (
        ("ssl.key.location", "ssl.keystore.location"),
        ("ssl.key.pem", "ssl.keystore.key"),
    ),
    "token_truststore": (("https.ca.location",), ("https.ca.pem",)),
}
#: Properties that Java or librdkafka need, with the values that mean what this client does.
_FIXED = {
    "sasl.login.callback.handler.class": tuple(
        f"org.apache.kafka.common.security.oauthbearer.{package}OAuthBearerLoginCallbackHandler"
        for package in ("", "secured.")
    ),
    "sasl.oauthbearer.jwt.retriever.class": tuple(
        f"org.apache.kafka.common.security.oauthbearer.{name}JwtRetriever"
        for name in ("Default", "ClientCredentials", "File")
    ),
    "sasl.oauthbearer.method": ("oidc",),
}
#: The properties of this module.
NAMES = frozenset(
    [_JAAS_CONFIG, _CHECK_HOSTNAME, *_FIXED]
    + [name for names in _TEXTS.values() for name in names]
    + [name for kinds in _STORES.values() for names in kinds for name in names]
)
_SECRET_TEXTS = (
    "password",
    "key_password",
    "truststore_password",
    "keystore_password",
    "client_secret",
)
#: The properties whose values are secrets.
SECRETS = frozenset(
    [name for text in _SECRET_TEXTS for name in _TEXTS[text]] + [*_STORES["key"][1], _JAAS_CONFIG]
)


def has_secret(name: str, value: str) -> bool:
    """Return whether a property sets a secret, and not only, for example, the name of a user."""
    if name == _JAAS_CONFIG:
        return any(option in value for option in ("password", "clientSecret"))
    return name in SECRETS and bool(value)


def _parse_jaas(text: Secret) -> dict[str, Secret]:
    """Return the options of a JAAS login module. Raises `SecurityError`."""
    if not text:
        return {}
    try:
        module = jaas.parse(text.reveal())
    except jaas.JaasError as error:
        problem = str(error)
    else:
        options = module.options
        if module.name.rpartition(".")[2] not in _MODULES:
            problem = f"the login module {module.name} is none of {', '.join(_MODULES)}"
        elif "username" in options and "password" not in options:
            problem = f"{module.name} has the option username and no option password"
        else:
            return {name: Secret(value) for name, value in options.items()}
    raise SecurityError(f"{_JAAS_CONFIG}: {problem}")


def _parse_security(properties: Mapping[str, Secret]) -> Security:
    for name, allowed in _FIXED.items():
        if properties.get(name):
            _check_one_of(name, properties[name].reveal(), allowed)
    options = _parse_jaas(properties.get(_JAAS_CONFIG, NO_SECRET))
    texts = {
        t: _require_agreement(_find_sources(t, names, properties, options))
        for t, names in _TEXTS.items()
    }
    is_token = bool(properties.get(_TOKEN_ID)) or options.get("tokenauth", "").lower() == "true"
    default = "SCRAM-SHA-512" if properties.get(_TOKEN_ID) else Security.mechanism
    return Security(
        texts["protocol"].upper() or Security.protocol,
        texts["mechanism"].upper() or default,
        texts["username"].reveal(),
        texts["password"],
        is_token,
        _parse_tls(properties, texts),
        _parse_oauth(properties, texts, options),
    )


def _find_sources(
    text: str,
    names: tuple[str, ...],
    properties: Mapping[str, Secret],
    options: Mapping[str, Secret],
) -> list[tuple[str, Secret]]:
    """Return the properties that set a text, and their values."""
    sources = [(name, properties[name]) for name in names if properties.get(name)]
    of_jaas = [options[o] for o, t in _JAAS_OPTIONS.items() if t == text and o in options]
    # KIP-1139: the properties have precedence over clientId, clientSecret and scope of JAAS.
    if of_jaas and (not sources or text in ("username", "password")):
        sources.insert(0, (_JAAS_CONFIG, of_jaas[0]))
    return sources


def _require_agreement(sources: list[tuple[str, Secret]]) -> Secret:
    """Return the value of properties that must have the same value. Raises `SecurityError`."""
    for name, value in sources[1:]:
        if value != sources[0][1]:
            raise SecurityError(f"{sources[0][0]} and {name} differ. Set one of them")
    return sources[0][1] if sources else NO_SECRET


def _parse_tls(properties: Mapping[str, Secret], texts: Mapping[str, Secret]) -> TlsSettings:
    for text in ("truststore_type", "keystore_type"):
        if texts[text]:
            _check_one_of(_TEXTS[text][0], texts[text].upper(), STORE_TYPES)
    own = texts["keystore_type"].upper(), texts["keystore_password"]
    truststore = _parse_store(
        "truststore", properties, texts["truststore_type"].upper(), texts["truststore_password"]
    )
    certificate, key = (
        _parse_store("certificate", properties, *own),
        _parse_store("key", properties, *own),
    )
    if certificate is not None and key is not None and certificate.value == key.value:
        key = None
    if key is not None and certificate is None:
        raise SecurityError(
            f"{key.name} needs the certificate too: set ssl.keystore.certificate.chain or"
            " ssl.certificate.location"
        )
    check = properties.get(_CHECK_HOSTNAME, "https").lower()
    return TlsSettings(
        truststore, certificate, key, texts["key_password"], check not in ("", "none")
    )


def _parse_store(
    kind: str, properties: Mapping[str, Secret], type: str = "", password: Secret = NO_SECRET
) -> TlsStore | None:
    paths, inline = _STORES[kind]
    sources = [(name, properties[name]) for name in (*paths, *inline) if properties.get(name)]
    # A keystore may hold a key or certificate in addition to the named one.
    single = [source for source in sources if source[0] != "ssl.keystore.location"] or sources
    if not single:
        return None
    name, value = single[0][0], _require_agreement(single)
    used = kind == "token_truststore" or properties.get("security.protocol", "").upper().endswith(
        "SSL"
    )
    if used and name in inline and "-----BEGIN" not in value:
        raise SecurityError(
            f"{name} must be PEM text, which begins with -----BEGIN. To name a file, use {paths[0]}"
        )
    if value.lower().endswith((".jks", ".jceks")):
        raise SecurityError(format_jks_refusal(name, value.reveal()))
    in_store = name.startswith(("ssl.truststore.", "ssl.keystore."))
    return TlsStore(name, value, type if in_store else "", password)


def _parse_oauth(
    properties: Mapping[str, Secret], texts: Mapping[str, Secret], options: Mapping[str, Secret]
) -> OAuthSettings | None:
    url = texts["token_url"].reveal()
    if not url or texts["mechanism"].upper() != OAUTHBEARER:
        return None
    parts = urllib.parse.urlsplit(url)
    if parts.username or parts.password:
        raise SecurityError(
            "sasl.oauthbearer.token.endpoint.url contains a user. Set"
            " sasl.oauthbearer.client.credentials.client.id instead"
        )
    target = {"http": parts.netloc, "https": parts.netloc, "file": parts.path}
    if not target.get(parts.scheme):
        raise SecurityError(
            f"sasl.oauthbearer.token.endpoint.url {url!r} is not a URL of http, https or file"
        )
    if parts.scheme != "file" and not (texts["client_id"] and texts["client_secret"]):
        raise SecurityError(
            "OAUTHBEARER needs sasl.oauthbearer.client.credentials.client.id and"
            " sasl.oauthbearer.client.credentials.client.secret"
        )
    return OAuthSettings(
        url,
        texts["client_id"].reveal(),
        texts["client_secret"],
        texts["scope"].reveal(),
        _parse_extensions(texts["extensions"], options),
        _parse_store("token_truststore", properties),
        texts["urlencode"].lower() == "true",
        _parse_milliseconds(
            "sasl.login.read.timeout.ms", texts["token_timeout_ms"], TOKEN_TIMEOUT_MS
        ),
    )


def _parse_milliseconds(name: str, text: Secret, default: int) -> int:
    if not text:
        return default
    if not text.isdigit() or int(text) == 0:
        raise SecurityError(
            f"{name} must be a positive number of milliseconds, not {text.reveal()!r}"
        )
    return int(text)


def _parse_extensions(
    text: Secret, options: Mapping[str, Secret]
) -> tuple[tuple[str, Secret], ...]:
    """Return the SASL extensions of JAAS (`extension_x="y"`) and of librdkafka (`x=y,…`)."""
    pairs = {
        name.removeprefix("extension_"): value
        for name, value in options.items()
        if name.startswith("extension_")
    }
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        pairs[name.strip()] = Secret(value.strip())
    for name, value in pairs.items():
        # KIP-342: letters; and printable ASCII with white space.
        if name == "auth" or not re.fullmatch(r"[A-Za-z]+", name):
            raise SecurityError(f"{name!r} is not a name of a SASL extension")
        if not re.fullmatch(r"[\x21-\x7E \t\r\n]+", value):
            raise SecurityError(f"the SASL extension {name} is not printable ASCII")
    return tuple(sorted(pairs.items()))

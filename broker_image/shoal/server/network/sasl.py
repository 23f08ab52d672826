"""The SASL mechanisms of each listener, as its configs have them.

PLAIN has its users in `listener.name.<listener>.plain.sasl.jaas.config`, SCRAM has users and
delegation tokens in the cluster's metadata, and OAUTHBEARER verifies signed tokens by the keys of a
provider. Tokens without a signature are accepted only if the config names Kafka's class for them;
Kafka accepts them by default.
"""

from __future__ import annotations

import ssl
from base64 import b32encode
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from shoal.metadata.config_keys import UNSECURED_TOKENS
from shoal.security import jaas, oauthbearer, plain
from shoal.security.credentials import StoredCredentials
from shoal.security.plain import PlainExchange, PlainUsers
from shoal.security.sasl import OAUTHBEARER, PLAIN, Exchange
from shoal.security.scram import SCRAM_MECHANISMS, ScramExchange
from shoal.server.config import InvalidConfig
from shoal.server.listener_security import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from shoal.security.oauthbearer import TokenValidator
    from shoal.server.listener_security import ListenerSecurity
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.network.key_sets import KeySet
    from shoal.server.node import Node

_JAAS = "sasl.jaas.config"
_URL = "sasl.oauthbearer.jwks.endpoint.url"
_HANDLER = "sasl.server.callback.handler.class"
_ALLOWED_URLS = "shoal.oauthbearer.allowed.urls"
_TRUST_FILE, _TRUST_TEXT = "ssl.truststore.location", "ssl.truststore.certificates"
_TRUST_TYPE = "ssl.truststore.type"
_MODULES = {
    PLAIN: plain.LOGIN_MODULE,
    OAUTHBEARER: oauthbearer.LOGIN_MODULE,
    **dict.fromkeys(SCRAM_MECHANISMS, "org.apache.kafka.common.security.scram.ScramLoginModule"),
}
#: Random bytes of a SCRAM nonce: 160 bits, which are 32 characters.
_NONCE_SIZE = 20


class SaslMechanism(NamedTuple):
    """One mechanism of a listener. `max_reauth_ms` is 0 if clients log in once."""

    name: str
    max_reauth_ms: int
    exchange: Callable[[], Exchange]


class ListenerSasl(NamedTuple):
    """How clients of one listener log in."""

    name: str
    mechanisms: Mapping[str, SaslMechanism]
    receive_size_max: int
    failure_delay_ms: int


class SaslMechanisms:
    """Makes the mechanisms of all listeners of a node, and owns the key sets that they use."""

    def __init__(self, node: Node, cache: MetadataCache) -> None:
        self._node = node
        self._process_secret = node.system.random_bytes(64)
        self._credentials = StoredCredentials(
            lambda: cache.image.scram_credentials,
            lambda: cache.image.delegation_tokens,
            token_secret=(node.config["delegation.token.secret.key"] or "").encode(),
            process_secret=self._process_secret,
        )
        #: By URL and the configs that decide how they are read.
        self._key_sets: dict[tuple[object, ...], KeySet] = {}

    @property
    def key_sets(self) -> Iterable[KeySet]:
        return self._key_sets.values()

    def make_listener_sasl(self, security: ListenerSecurity) -> ListenerSasl:
        """Return how clients of a listener log in. Raises `InvalidConfig`."""
        enabled = security.get_value("sasl.enabled.mechanisms")
        size = security.get_value("sasl.server.max.receive.size")
        request_size_max = self._node.config["socket.request.max.bytes"]
        return ListenerSasl(
            security.name,
            {name: self._make_mechanism(security, name) for name in enabled},
            request_size_max if size < 0 else min(size, request_size_max),
            security.get_value("connection.failed.authentication.delay.ms"),
        )

    def _make_mechanism(self, security: ListenerSecurity, name: str) -> SaslMechanism:
        options = _parse_options(security, name)
        exchange: Callable[[], Exchange]
        if name in SCRAM_MECHANISMS:
            exchange = partial(self._make_scram_exchange, name)
        elif name == PLAIN:
            users = PlainUsers(options, self._process_secret)
            if not users:
                raise InvalidConfig(
                    f"PLAIN is enabled on the listener {security.name}, but no user is: set"
                    f" {_get_jaas_name(security, name)} to {plain.LOGIN_MODULE} required"
                    ' user_NAME="PASSWORD";'
                )
            exchange = partial(PlainExchange, users)
        else:
            assert name == OAUTHBEARER, name  # `cluster_config` has checked the mechanisms.
            validator = self._make_validator(security, options)
            exchange = partial(oauthbearer.OAuthExchange, validator)
        return SaslMechanism(name, security.get_value("connections.max.reauth.ms", name), exchange)

    def _make_scram_exchange(self, name: str) -> ScramExchange:
        nonce = b32encode(self._node.system.random_bytes(_NONCE_SIZE)).decode()
        return ScramExchange(SCRAM_MECHANISMS[name], nonce, self._credentials)

    def _make_validator(
        self, security: ListenerSecurity, options: Mapping[str, str]
    ) -> TokenValidator:
        if security.get_value(_HANDLER, OAUTHBEARER) == UNSECURED_TOKENS:
            from shoal.security.unsecured_jws import UnsecuredValidator

            try:
                return UnsecuredValidator(options)
            except ValueError as error:
                raise InvalidConfig(f"{_get_jaas_name(security, OAUTHBEARER)}: {error}.") from None
        # Only brokers that verify signatures load the libraries for it (10 MB, 100 ms).
        from shoal.security.jwt_tokens import JwtRules, JwtValidator

        value = partial(security.get_value, mechanism=OAUTHBEARER)
        rules = JwtRules(
            issuer=value("sasl.oauthbearer.expected.issuer"),
            audiences=value("sasl.oauthbearer.expected.audience"),
            any_audience=value("sasl.oauthbearer.allow.unverified.audience"),
            clock_skew_s=value("sasl.oauthbearer.clock.skew.seconds"),
            subject_claim=value("sasl.oauthbearer.sub.claim.name").strip(),
            scope_claim=value("sasl.oauthbearer.scope.claim.name").strip(),
        )
        return JwtValidator(self._make_key_set(security, options), rules)

    def _make_key_set(self, security: ListenerSecurity, options: Mapping[str, str]) -> KeySet:
        from shoal.server.network.key_sets import KeySet, KeySetConfig

        url = _check_url(security)
        value = partial(security.get_value, mechanism=OAUTHBEARER)
        config = KeySetConfig(
            url,
            value("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
            value("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
        )
        tls = {name: text for name, text in options.items() if name.startswith("ssl.")}
        key = (config, *sorted(tls.items()))
        if key not in self._key_sets:
            if url.lower().startswith("https:"):
                name = _get_jaas_name(security, OAUTHBEARER)
                config = config._replace(tls=_make_tls_context(name, tls))
            self._key_sets[key] = KeySet(self._node, config)
        return self._key_sets[key]


def _get_jaas_name(security: ListenerSecurity, mechanism: str) -> str:
    return f"{PREFIX}{security.name.lower()}.{mechanism.lower()}.{_JAAS}"


def _parse_options(security: ListenerSecurity, mechanism: str) -> Mapping[str, str]:
    """Return the options of a mechanism's login module. As in Kafka, only the config of this
    listener and mechanism counts. Raises `InvalidConfig`."""
    name = _get_jaas_name(security, mechanism)
    text = security.overrides.get(name)
    if text is None:
        return {}
    try:
        module = jaas.parse(text)
    except jaas.JaasError as error:
        raise InvalidConfig(f"{name} is invalid: {error}.") from None
    if module.name != _MODULES.get(mechanism):
        raise InvalidConfig(
            f"{name} names the login module {module.name}; for {mechanism} it is"
            f" {_MODULES.get(mechanism)}."
        )
    return module.options


def _check_url(security: ListenerSecurity) -> str:
    """Return the URL of a listener's key set. Raises `InvalidConfig`."""
    name = f"{PREFIX}{security.name.lower()}.oauthbearer.{_URL}"
    url: str = security.get_value(_URL, OAUTHBEARER) or ""
    if not url:
        raise InvalidConfig(
            f"OAUTHBEARER is enabled on the listener {security.name}, but {name} is not set: name"
            " the URL of the keys that sign tokens. For tests, tokens without a signature are"
            f" accepted with {name.removesuffix(_URL)}{_HANDLER}={UNSECURED_TOKENS}."
        )
    try:
        parts = urlsplit(url)
        has_place = url.startswith("file:///") if parts.scheme == "file" else bool(parts.hostname)
        _ = parts.port
    except ValueError:
        has_place = False
    if not has_place or parts.scheme not in ("http", "https", "file"):
        raise InvalidConfig(
            f"{name} is {url!r}, which is no URL such as https://host/path or file:///path."
        )
    if parts.scheme != "https" and url not in security.get_value(_ALLOWED_URLS):
        raise InvalidConfig(
            f"{name} is {url}. Its scheme {parts.scheme} does not protect the keys. Use https, or"
            f" add the URL to {_ALLOWED_URLS}."
        )
    return url


def _make_tls_context(name: str, options: Mapping[str, str]) -> ssl.SSLContext:
    """Return how the provider's certificate is verified: by the authorities in the options of the
    login module, as in Kafka, else by those of the system. Raises `InvalidConfig`."""
    for option in options:
        if option not in (_TRUST_FILE, _TRUST_TEXT, _TRUST_TYPE):
            raise InvalidConfig(f"{name} has the option {option}, which is not supported.")
    if options and options.get(_TRUST_TYPE, "").upper() != "PEM":
        raise InvalidConfig(f"{name} needs {_TRUST_TYPE}=PEM; other types are not supported.")
    try:
        return ssl.create_default_context(
            cafile=options.get(_TRUST_FILE), cadata=options.get(_TRUST_TEXT)
        )
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{name}: the truststore cannot be read: {error}.") from None

"""SCRAM (RFC 5802, RFC 7677, KIP-84): stored credentials and the server's side of an exchange.

The server never computes PBKDF2 for a user: a login costs three HMACs and two hashes. A name
without a credential gets a false one (`DummyCredentials`), and the exchange takes the same steps
with it. So an unknown user and a wrong password differ neither in bytes nor in steps.

Kafka reads messages less strictly. Here, the channel binding must repeat the client's header, as
RFC 5802 requires. Header `y` is accepted like `n`. The signed text is what the client has sent, not
what the parser made of it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from bisect import bisect
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.security.sasl import SCRAM_SHA_256, SCRAM_SHA_512, LoginRefused, SaslLogin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The smallest number of iterations that both mechanisms permit (RFC 7677), also Kafka's default.
ITERATIONS_MIN = 4096
#: Milliseconds between two counts of the shapes of stored credentials.
SHAPES_INTERVAL_MS = 60_000
#: The extension by which a client logs in with a delegation token (KIP-48).
TOKEN_AUTH = "tokenauth"

_SALT_BITS = 130
_SALT_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
#: Salts of Kafka's tools: a number of 130 bits to the base 36.
_KAFKA_SALT = re.compile(rb"[0-9a-z]{20,26}")
_NAME = r"(?:[^\x00=,]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^\x00,]+)*"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)?"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<signed>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


class ScramCredential(NamedTuple):
    """What the server stores of a user's password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential([hidden], iterations={self.iterations})"


class ScramMechanism(NamedTuple):
    """A mechanism: its name, its number in Kafka's protocol, its hash and the size of a key."""

    name: str
    number: int
    digest: str
    key_size: int


SCRAM_MECHANISMS = {
    SCRAM_SHA_256: ScramMechanism(SCRAM_SHA_256, 1, "sha256", 32),
    SCRAM_SHA_512: ScramMechanism(SCRAM_SHA_512, 2, "sha512", 64),
}


def build_credential(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """Return the credential of a password."""
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return from_salted_password(mechanism, salted, salt, iterations)


def from_salted_password(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password, which clients send to create a user."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt,
        hashlib.new(mechanism.digest, client_key).digest(),
        hmac.digest(salted_password, b"Server Key", mechanism.digest),
        iterations,
    )


class UserCredential(NamedTuple):
    """The credential for a name, and whether there is that user. Other names have `false`.

    The exchange keeps both until its end, so that freeing them takes the same time in all cases.
    """

    credential: ScramCredential
    is_known: bool
    false: ScramCredential


class TokenCredential(NamedTuple):
    """A delegation token as a credential: who owns it, when it expires, whether it is valid."""

    owner: str
    expires_ms: int
    credential: ScramCredential
    is_valid: bool


class CredentialSource(Protocol):
    """The users and delegation tokens that may log in."""

    def find_user(self, name: str, mechanism: ScramMechanism, now_ms: int) -> UserCredential:
        """Return the credential for a name. It takes the same time for any name."""

    def find_token(self, token_id: str, mechanism: ScramMechanism, now_ms: int) -> TokenCredential:
        """Return the credential for the id of a delegation token, whether or not it is valid."""


class _Shape(NamedTuple):
    """What clients see of a credential. `salt_size` 0 means a salt of Kafka's tools."""

    salt_size: int
    iterations: int


_KAFKA_SHAPE = _Shape(0, ITERATIONS_MIN)


class DummyCredentials:
    """Credentials for names that have none. Nobody can log in with one.

    Each name always gets the same one, as a real user would, derived from `secret`. Salt and
    iterations look like those of the stored credentials, in the same proportions. All brokers of a
    cluster should have the same secret: a name whose salt differs between them is no user.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        #: By the mechanism's number: shapes, and the running totals of their counts.
        self._shapes: dict[int, tuple[list[_Shape], list[int]]] = {}
        #: The keys of stored credentials.
        self._keys: list[tuple[str, int]] = []
        self._count_at_ms = 0

    def observe(self, stored: Mapping[tuple[str, int], ScramCredential], now_ms: int) -> None:
        """Note the keys and shapes of the stored credentials, at most once a minute."""
        if now_ms < self._count_at_ms and self._shapes:
            return
        self._count_at_ms = now_ms + SHAPES_INTERVAL_MS
        self._keys = list(stored)
        counts: dict[int, Counter[_Shape]] = {}
        for (_, number), found in stored.items():
            counts.setdefault(number, Counter())[_find_shape(found)] += 1
        self._shapes = {
            number: (shapes := sorted(found), list(accumulate(found[s] for s in shapes)))
            for number, found in counts.items()
        }

    def build_credential(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        """Return the false credential of a name."""
        seed = hmac.digest(self._secret, f"{mechanism.number}\0{name}".encode(), "sha512")
        point = int.from_bytes(seed[:8], "big")
        shapes, totals = self._shapes.get(mechanism.number, ([_KAFKA_SHAPE], [1]))
        shape = shapes[bisect(totals, point * totals[-1] >> 64)]
        key = hmac.digest(seed, b"key", "sha512")[: mechanism.key_size]
        stream = hashlib.shake_256(seed).digest(max(shape.salt_size, 17))
        salt = stream[: shape.salt_size] if shape.salt_size else _format_kafka_salt(stream)
        return ScramCredential(salt, key, key, shape.iterations)

    def build_for_token(
        self, token_id: str, mechanism: ScramMechanism, salt: bytes
    ) -> ScramCredential:
        """Return the false credential of a delegation token's id, with the salt of a real one."""
        seed = hmac.digest(self._secret, f"token {mechanism.number}\0{token_id}".encode(), "sha512")
        key = seed[: mechanism.key_size]
        return ScramCredential(salt, key, key, ITERATIONS_MIN)

    def pick_other_key(self, false: ScramCredential, key: tuple[str, int]) -> tuple[str, int]:
        """Return the key of some stored credential, by the false one of `key`. If nothing was
        stored, return `key`."""
        keys = self._keys or [key]
        return keys[int.from_bytes(false.stored_key[:8], "big") % len(keys)]


def _find_shape(credential: ScramCredential) -> _Shape:
    is_kafka = _KAFKA_SALT.fullmatch(credential.salt) is not None
    return _Shape(0 if is_kafka else len(credential.salt), credential.iterations)


def _format_kafka_salt(stream: bytes) -> bytes:
    """Return the salt that Java's `new BigInteger(130, random).toString(36)` makes."""
    number = int.from_bytes(stream[:17], "big") >> (17 * 8 - _SALT_BITS)
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _SALT_DIGITS[digit] + digits
    return digits.encode()


class ScramExchange:
    """One exchange. `nonce` is the server's part: printable ASCII without a comma, used once."""

    def __init__(
        self, mechanism: ScramMechanism, nonce: str, credentials: CredentialSource
    ) -> None:
        self.user = ""
        self.login: SaslLogin | None = None
        self._mechanism = mechanism
        self._nonce = nonce
        self._credentials = credentials
        self._next: Callable[[bytes, int], bytes] = self._evaluate_first
        self._kept: UserCredential | TokenCredential | None = None
        #: What the first messages leave for the final one.
        self._expected = _EXPECT_NOTHING

    def evaluate(self, token: bytes, now_ms: int) -> bytes:
        """Return the answer to a token of the client. Raises `LoginRefused`."""
        call, self._next = self._next, self._refuse
        return call(token, now_ms)

    def _evaluate_first(self, token: bytes, now_ms: int) -> bytes:
        match = _match(_CLIENT_FIRST, token, "first")
        self.user = match["name"].replace("=2C", ",").replace("=3D", "=")
        if match["authzid"] not in (None, match["name"]):
            # Before the credential is looked up: the answer must not depend on it.
            raise LoginRefused(
                "the authorization id differs from the user name",
                "Authentication failed: Client requested an authorization id that is different"
                " from username",
            )
        if _has_token_auth(match["extensions"]):
            token_credential = self._credentials.find_token(self.user, self._mechanism, now_ms)
            self._kept, stored, is_known = (
                token_credential,
                token_credential.credential,
                token_credential.is_valid,
            )
            login = SaslLogin(token_credential.owner, token_credential.expires_ms, by_token=True)
        else:
            user = self._credentials.find_user(self.user, self._mechanism, now_ms)
            self._kept, stored, is_known = user, user.credential, user.is_known
            login = SaslLogin(f"User:{self.user}")
        nonce = match["nonce"] + self._nonce
        answer = f"r={nonce},s={b64encode(stored.salt).decode()},i={stored.iterations}"
        binding = b64encode(match["header"].encode()).decode()
        # Older versions of librdkafka, such as 2.0.2, repeat the part of the client.
        nonces = (nonce, match["nonce"] + nonce)
        self._expected = _Expected(
            login, is_known, stored, nonces, binding, f"{match['bare']},{answer},"
        )
        self._next = self._evaluate_final
        return answer.encode()

    def _evaluate_final(self, token: bytes, _now_ms: int) -> bytes:
        match = _match(_CLIENT_FINAL, token, "final")
        expected, digest = self._expected, self._mechanism.digest
        if match["nonce"] not in expected.nonces:
            raise LoginRefused("the nonce of the final message is not that of this exchange")
        if match["binding"] != expected.binding:
            raise LoginRefused("the channel binding does not repeat the client's header")
        proof = b64decode(match["proof"])
        if len(proof) != self._mechanism.key_size:
            raise LoginRefused(f"a proof of {len(proof)} bytes")
        signed = (expected.signed + match["signed"]).encode()
        stored = expected.credential
        signature = hmac.digest(stored.stored_key, signed, digest)
        client_key = (int.from_bytes(proof, "big") ^ int.from_bytes(signature, "big")).to_bytes(
            len(proof), "big"
        )
        verifier = hmac.digest(stored.server_key, signed, digest)
        is_right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), stored.stored_key)
        if not (is_right & expected.is_known):
            raise LoginRefused("unknown user or wrong password")
        self.login = expected.login
        return b"v=" + b64encode(verifier)

    def _refuse(self, _token: bytes, _now_ms: int) -> bytes:
        raise LoginRefused("a token after the end of the exchange")


class _Expected(NamedTuple):
    """What a complete exchange needs: who logs in, and what the final message must have."""

    login: SaslLogin
    is_known: bool
    credential: ScramCredential
    nonces: tuple[str, ...]
    binding: str
    #: The text that both sides sign, up to the client's final message.
    signed: str


_EXPECT_NOTHING = _Expected(SaslLogin(""), False, ScramCredential(b"", b"", b"", 0), (), "", "")


def _match(pattern: re.Pattern[str], token: bytes, message_name: str) -> re.Match[str]:
    try:
        match = pattern.fullmatch(token.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise LoginRefused(f"the client's {message_name} SCRAM message is malformed")
    return match


def _has_token_auth(extensions: str) -> bool:
    if not extensions:
        return False
    pairs = dict(pair.split("=", 1) for pair in extensions[1:].split(","))
    return pairs.get(TOKEN_AUTH, "").lower() == "true"

"""PLAIN (RFC 4616, KIP-86): users and passwords from the JAAS config of a listener."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from shoal.security.sasl import LoginRefused, SaslLogin

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The option of a user in the JAAS config: `user_alice="secret"`.
USER_PREFIX = "user_"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class PlainUsers:
    """The passwords of users, as HMACs, so that a comparison takes the same time for all of them.

    `secret` is known to this process only.
    """

    def __init__(self, options: Mapping[str, str], secret: bytes) -> None:
        """`options` are those of the login module; others than `user_…` are ignored."""
        self._secret = secret
        self._digests = {
            name.removeprefix(USER_PREFIX): self._compute_digest(password)
            for name, password in options.items()
            if name.startswith(USER_PREFIX)
        }
        self._of_nobody = hmac.digest(secret, b"\0nobody", "sha256")

    def __len__(self) -> int:
        return len(self._digests)

    def verify(self, name: str, password: str) -> bool:
        """Whether there is that user with that password. It takes the same steps for any name."""
        expected = self._digests.get(name, self._of_nobody)
        is_right = hmac.compare_digest(self._compute_digest(password), expected)
        return is_right & (expected is not self._of_nobody)

    def _compute_digest(self, password: str) -> bytes:
        return hmac.digest(self._secret, password.encode(), "sha256")


class PlainExchange:
    """One exchange, which is one message: `[authzid] NUL user NUL password`."""

    def __init__(self, users: PlainUsers) -> None:
        self.user = ""
        self.login: SaslLogin | None = None
        self._users = users

    def evaluate(self, token: bytes, _now_ms: int) -> bytes:
        """Return the empty answer. Raises `LoginRefused`."""
        parts = token.decode(errors="replace").split("\0", 3)
        if len(parts) != 3:
            raise _build_refused_error(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}",
            )
        authzid, self.user, password = parts
        if not self.user:
            raise _build_refused_error("Authentication failed: username not specified")
        if not password:
            raise _build_refused_error("Authentication failed: password not specified")
        if not self._users.verify(self.user, password):
            raise _build_refused_error("Authentication failed: Invalid username or password")
        if authzid not in ("", self.user):
            raise _build_refused_error(
                "Authentication failed: Client requested an authorization id that is different"
                " from username"
            )
        self.login = SaslLogin(f"User:{self.user}")
        return b""


def _build_refused_error(message: str) -> LoginRefused:
    return LoginRefused(message, message)

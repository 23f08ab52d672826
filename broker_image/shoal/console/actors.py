"""With whose rights an action runs.

A console without a login, on a loopback address, and a console with one user act with the rights
of the console's own connection. With several users, each acts by a delegation token of their name
(KIP-48, KIP-373): the brokers check the rights of that user. Elsewhere actions are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.errors import ClientError, SecurityError
from shoal.console.security import is_loopback

if TYPE_CHECKING:
    from shoal.client.security_admin import DelegationToken
    from shoal.console.security import Access

#: The lifetime of a token. An action may run for as long as a new token has left.
TOKEN_LIFETIME_S = 24 * 3600.0
#: The age at which a new action gets another token.
TOKEN_AGE_S_MAX = 12 * 3600.0

#: A broker learns of a new token a moment after its controller.
ATTEMPTS_MAX, ATTEMPT_S = 10, 0.2


@dataclass(slots=True)
class _Actor:
    token: DelegationToken
    client: Client
    made_at_s: float


async def _admitted(client: Client) -> None:
    """Wait until the brokers accept a new token. Raises `SecurityError` if they do not."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            await client.admin.describe_cluster()
        except SecurityError:
            if attempt == ATTEMPTS_MAX - 1:
                raise
            await asyncio.sleep(ATTEMPT_S)
        else:
            return


class Actors:
    """The clients that act, one for each user."""

    def __init__(self, client: Client, access: Access) -> None:
        """`client` is that of the console's connection, which the caller closes."""
        self._client = client
        self._access = access
        self._known: dict[str, _Actor] = {}
        #: Tokens that newer ones have replaced. Their actions may still run.
        self._old: list[_Actor] = []
        self._lock = asyncio.Lock()

    @property
    def why_off(self) -> str:
        """Why actions are off, as a sentence with the remedy; empty if they are on."""
        access = self._access
        if not access.allow_actions:
            return "This console only reads."
        if not access.users:
            if is_loopback(access.host):
                return ""
            return (
                "Actions are off: other hosts reach this console, and it cannot know who acts."
                " Give it --login."
            )
        security = self._client.cluster.settings.security
        if len(access.users) > 1 and (not security.sasl or security.is_token):
            how = "a delegation token" if security.is_token else security.protocol
            return (
                "Actions are off: each user acts by a delegation token, and the console cannot"
                f" create one because it is connected by {how}. Connect it by SASL with a password"
                " or an access token, or give --login one user only."
            )
        return ""

    async def client(self, user: str) -> Client:
        """Return the client that acts for a user. Raises `ClientError`, for example if the console
        may not create tokens for this user."""
        if len(self._access.users) <= 1:
            return self._client
        async with self._lock:
            known = self._known.get(user)
            now_s = time.monotonic()
            if known is not None and now_s - known.made_at_s < TOKEN_AGE_S_MAX:
                return known.client
            self._known[user] = await self._made(user, now_s)
            if known is not None:
                self._old.append(known)
            return self._known[user].client

    async def _made(self, user: str, now_s: float) -> _Actor:
        tokens = self._client.admin.tokens
        # Only owners and renewers may end a token.
        me = await tokens.identity()
        token = await tokens.create(
            owner=f"User:{user}",
            renewers=[me.principal] if me is not None else (),
            max_lifetime_ms=int(TOKEN_LIFETIME_S * 1000),
        )
        settings = self._client.cluster.settings
        security = settings.security.with_token(token.token_id, token.password)
        client = Client(replace(settings, security=security))
        try:
            await _admitted(client)
        except BaseException:
            await client.close()
            raise
        return _Actor(token, client, now_s)

    async def close(self) -> None:
        """Close the clients, and end their tokens as far as the brokers allow it."""
        for actor in (*self._known.values(), *self._old):
            await actor.client.close()
            with contextlib.suppress(ClientError):
                await self._client.admin.tokens.expire(actor.token.hmac)
        self._known.clear()
        self._old.clear()

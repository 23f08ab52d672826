"""With whose rights an action runs.

A console without a login, on a loopback address, and a console with one user act with the rights
of the console's own connection. With several users, each acts by a delegation token of their name
(KIP-48, KIP-373), or by the access token of their login (OAUTHBEARER): the brokers check the rights
of that user. Elsewhere actions are off.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shoal.client.client import Client
from shoal.client.errors import ClientError, SecurityError
from shoal.console.access.security import DELEGATION, TOKEN, is_loopback

if TYPE_CHECKING:
    from shoal.client.admin.security_admin import DelegationToken
    from shoal.console.access.security import Bearer, ConsoleAccess

#: The lifetime of a token. An action may run for as long as a new token has left.
TOKEN_LIFETIME_S = 24 * 3600.0
#: The age at which a new action gets another token.
TOKEN_AGE_S_MAX = 12 * 3600.0

#: Users whose clients are kept.
ACTORS_MAX = 100

#: A broker learns of a new token a moment after its controller.
ATTEMPTS_MAX, ATTEMPT_S = 10, 0.2


@dataclass(slots=True)
class _Actor:
    client: Client
    made_at_s: float
    token: DelegationToken | None = None
    bearer: Bearer | None = None

    def is_usable(self, bearer: Bearer | None, now_s: float) -> bool:
        """Whether a new action may use the client."""
        if bearer is not None:
            return self.bearer is bearer
        return now_s - self.made_at_s < TOKEN_AGE_S_MAX


async def _wait_until_admitted(client: Client) -> None:
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

    def __init__(self, client: Client, access: ConsoleAccess) -> None:
        """`client` is that of the console's connection, which the caller closes."""
        self._client = client
        self._access = access
        self._actors: dict[str, _Actor] = {}
        #: Tokens that newer ones have replaced. Their actions may still run.
        self._old: list[_Actor] = []
        self._lock = asyncio.Lock()

    @property
    def why_off(self) -> str:
        """Why actions are off, as a sentence with the remedy; empty if they are on."""
        access = self._access
        if not access.allow_actions:
            return "This console only reads."
        if not access.has_login:
            if is_loopback(access.host):
                return ""
            return (
                "Actions are off: other hosts reach this console, and it cannot know who acts."
                " Give it --login."
            )
        security = self._client.cluster.settings.security
        if access.acts_by == TOKEN and not security.sasl:
            return (
                "Actions are off: each user acts by an access token (OAUTHBEARER), which needs"
                f" SASL, and the console is connected by {security.protocol}. Connect it to a"
                " listener with SASL."
            )
        if access.acts_by == DELEGATION and (not security.sasl or security.is_token):
            connection = "a delegation token" if security.is_token else security.protocol
            return (
                "Actions are off: each user acts by a delegation token, and the console cannot"
                f" create one because it is connected by {connection}. Connect it by SASL with a "
                "password or an access token"
                + (", or give --login one user only." if access.users else ".")
            )
        return ""

    async def get_client(self, user: str, bearer: Bearer | None = None) -> Client:
        """Return the client that acts for a user, by the access token if the login has one.

        Raises `ClientError`, for example if the console may not create tokens for this user, or if
        the brokers refuse the access token.
        """
        acts_by = self._access.acts_by
        if not acts_by:
            return self._client
        if acts_by == TOKEN and bearer is None:
            raise SecurityError("the login has no access token that is valid now. Log in again")
        name = user if bearer is None else bearer.key
        async with self._lock:
            cached = self._actors.get(name)
            now_s = time.monotonic()
            if cached is not None and cached.is_usable(bearer, now_s):
                return cached.client
            if bearer is None:
                actor = await self._make_by_delegation(user, now_s)
            else:
                actor = await self._make_by_token(bearer, now_s)
            self._actors.pop(name, None)
            self._actors[name] = actor
            if cached is not None:
                self._old.append(cached)
            await self._forget(now_s)
            return actor.client

    async def _forget(self, now_s: float) -> None:
        """Close clients that no action can use any longer."""
        while len(self._actors) > ACTORS_MAX:
            self._old.append(self._actors.pop(next(iter(self._actors))))
        for actor in [a for a in self._old if now_s - a.made_at_s > TOKEN_LIFETIME_S]:
            self._old.remove(actor)
            await actor.client.close()

    async def _make_by_token(self, bearer: Bearer, now_s: float) -> _Actor:
        settings = self._client.cluster.settings
        security = settings.security.with_access_token(lambda: bearer.value)
        client = Client(replace(settings, security=security))
        try:
            await client.admin.describe_cluster()
        except BaseException:
            await client.close()
            raise
        return _Actor(client, now_s, bearer=bearer)

    async def _make_by_delegation(self, user: str, now_s: float) -> _Actor:
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
            await _wait_until_admitted(client)
        except BaseException:
            await client.close()
            raise
        return _Actor(client, now_s, token)

    async def close(self) -> None:
        """Close the clients, and end their tokens as far as the brokers allow it."""
        for actor in (*self._actors.values(), *self._old):
            await actor.client.close()
            if actor.token is None:
                continue
            with contextlib.suppress(ClientError):
                await self._client.admin.tokens.expire(actor.token.hmac)
        self._actors.clear()
        self._old.clear()

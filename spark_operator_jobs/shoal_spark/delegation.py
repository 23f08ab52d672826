"""The login of executors: a short-lived delegation token (KIP-48) in place of the query's login.

The driver asks for a token with its own login, extends it while the query runs, and ends it when
the query stops. If the driver dies, the token ends after `LIFETIME_MS`. Each task carries the token
in its input partition, which Spark neither logs nor shows.

A token logs in by SCRAM, so the brokers' listener needs a SCRAM mechanism.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from shoal.client.errors import ClientError, KafkaError

from shoal_spark.options import InvalidOption, TokenLogin

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from shoal.client.admin.security_admin import DelegationToken
    from shoal.client.client import SyncClient

    from shoal_spark.options import ConnectionOptions

log = logging.getLogger("shoal_spark")
#: How long a token is valid after the driver has extended it for the last time.
LIFETIME_MS = 3_600_000
#: The fraction of the lifetime after which it is extended; one failure does no harm.
EXTEND_AT = 0.3
CLOSE_TIMEOUT_S = 5.0


class ExecutorLogin:
    """The token of one query, on its driver.

    `required` is the option: None uses a token if the cluster issues one to this login.
    """

    def __init__(
        self,
        client: SyncClient,
        connection: ConnectionOptions,
        required: bool | None,
        *,
        lifetime_ms: int = LIFETIME_MS,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client, self._required = client, required
        self._lifetime_ms, self._clock_ms = lifetime_ms, clock_ms
        self._token: DelegationToken | None = None
        self._extending: Future[None] | None = None
        self._mechanism = connection.token_mechanism
        self._is_wanted = required is not False and connection.may_use_tokens(required)

    def get_current(self) -> TokenLogin | None:
        """Return the login of the next tasks; None if executors use the query's own.

        Raises `InvalidOption` if a token is required and the cluster issues none.
        """
        if not self._is_wanted:
            return None
        if self._token is None:
            try:
                self._token = self._client.run(self._create())
            except KafkaError as error:
                self._handle_refusal(error)
                return None
            self._extending = self._client.submit(self._extend())
        token = self._token
        return TokenLogin(self._mechanism, token.token_id, token.password.reveal())

    def _handle_refusal(self, error: KafkaError) -> None:
        if error.retriable:
            raise error
        if self._required:
            raise InvalidOption(
                f"option 'delegation.token.enable' is true, and the cluster issues no token: "
                f"{error}. Set delegation.token.secret.key on all brokers, and log in by SASL "
                "without a token"
            ) from None
        log.info("executors use the query's own login: %s", error)
        self._is_wanted = False

    async def _create(self) -> DelegationToken:
        tokens = self._client.admin.tokens
        token = await tokens.create()
        # The period of the brokers is a day by default.
        await tokens.expire(bytes(token.hmac), self._lifetime_ms)
        return token

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(EXTEND_AT * self._lifetime_ms / 1000)
            try:
                await self._extend_once()
            except ClientError as error:
                log.warning("the delegation token of the executors: %s", error)

    async def _extend_once(self) -> None:
        token = self._token
        assert token is not None
        if token.max_ms - self._clock_ms() > self._lifetime_ms:
            try:
                await self._client.admin.tokens.renew(bytes(token.hmac), self._lifetime_ms)
                return
            except KafkaError as error:
                if error.retriable:
                    raise
        # It cannot be extended. Tasks that have it may use it until it ends.
        self._token = await self._create()

    def close(self) -> None:
        """End the token. Does not raise."""
        if self._extending is not None:
            self._extending.cancel()
        if self._token is None:
            return
        try:
            ended = self._client.admin.tokens.expire(bytes(self._token.hmac))
            self._client.run(ended, CLOSE_TIMEOUT_S)
        except (ClientError, TimeoutError) as error:
            log.warning("ending the delegation token of the executors: %s", error)
        self._token = None

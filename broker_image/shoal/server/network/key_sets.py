"""Key sets of token providers (JWKS): read at intervals, never in the way of the broker.

A set is read in the background, within a deadline and up to a size, and its keys stay in force
until the next set is read. While a provider is down, the broker starts and serves; tokens are
refused if no set was read yet. A token with an unknown key id makes the broker read the set
earlier, at most once in `EXPEDITE_MS`, so that made-up key ids do not load the provider.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from shoal.security import strict_verification
from shoal.security.jwt_tokens import JwtKey, KeySetError, parse_keys
from shoal.server.network import http_get

if TYPE_CHECKING:
    import ssl

    from shoal.server.node import Node

#: Seconds for one attempt, from the look-up of the host's name to the last byte.
DEADLINE_S = 10.0
#: Bytes of a key set.
SIZE_MAX = 1024 * 1024
#: Milliseconds between two readings that unknown key ids cause.
EXPEDITE_MS = 10_000
#: Milliseconds between two lines of the log about a provider that does not answer.
_LOG_INTERVAL_MS = 60_000
_FILE = "file://"


class KeySetConfig(NamedTuple):
    """Where a key set is, and when it is read."""

    url: str
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int
    tls: ssl.SSLContext | None = None


class KeySet:
    """Owns the keys of one provider and the task that reads them (`jwt_tokens.KeySource`)."""

    def __init__(self, node: Node, config: KeySetConfig) -> None:
        self.keys: tuple[JwtKey, ...] = ()
        #: How often the set was read, and how often an attempt failed.
        self.reads_total = self.failures_total = 0
        self._config = config
        self._loop = node.loop
        self._clock = node.clock
        self._log = node.log.bind(url=config.url)
        self._wake = asyncio.Event()
        #: Set after the first attempt, whether or not it has succeeded.
        self._first_attempt = asyncio.Event()
        self._expedite_at_ms = self._log_at_ms = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to read the set."""
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def wait_until_tried(self) -> None:
        """Wait for the end of the first attempt."""
        await self._first_attempt.wait()

    def on_key_missing(self, _key_id: str, now_ms: int) -> None:
        """Read the set soon, unless it was read for this reason a short while ago."""
        if now_ms >= self._expedite_at_ms:
            self._expedite_at_ms = now_ms + EXPEDITE_MS
            self._wake.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            failures = 0 if await self._read() else failures + 1
            self._first_attempt.set()
            config = self._config
            pause_ms = config.refresh_ms
            if failures:
                backoff_ms = config.backoff_ms << min(failures - 1, 20)
                pause_ms = min(backoff_ms, config.backoff_max_ms, pause_ms)
            with contextlib.suppress(TimeoutError):
                # An unknown key id ends the pause after a success. After a failure, the back-off
                # decides.
                async with asyncio.timeout(pause_ms / 1000):
                    await (self._loop.create_future() if failures else self._wake.wait())

    async def _read(self) -> bool:
        """Read the set once. Return whether that succeeded."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                data = await self._get()
                keys = await self._loop.run_in_executor(None, parse_keys, data)
        except TimeoutError:
            self._on_failure(f"not within {DEADLINE_S:.0f} s")
        except (http_get.HttpError, KeySetError, OSError) as error:
            self._on_failure(f"{error}{strict_verification.find_remedy(error)}")
        else:
            self.reads_total += 1
            self._log_at_ms = 0
            if keys != self.keys:
                self._log.info("a key set was read", keys=[key.key_id for key in keys])
            self.keys = keys
            return True
        return False

    async def _get(self) -> bytes:
        url = self._config.url
        if url.lower().startswith(_FILE):
            return await self._loop.run_in_executor(None, _read_file, url[len(_FILE) :])
        return await http_get.get(url, self._config.tls, SIZE_MAX)

    def _on_failure(self, reason: str) -> None:
        self.failures_total += 1
        now_ms = self._clock.now_ms()
        if now_ms >= self._log_at_ms:
            self._log_at_ms = now_ms + _LOG_INTERVAL_MS
            self._log.warning("a key set cannot be read", error=reason, keys=len(self.keys))


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(SIZE_MAX + 1)
    if len(data) > SIZE_MAX:
        raise KeySetError(f"the file is larger than {SIZE_MAX} bytes")
    return data

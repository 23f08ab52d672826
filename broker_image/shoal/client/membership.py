"""The heartbeat of a group whose broker assigns: share groups (KIP-932), consumer groups (KIP-848).

Owns one member's id, epoch and the task that beats. What a heartbeat says beyond that, and what an
assignment means, is the subclass's.

A member that the broker has fenced or forgotten joins again under the same id with epoch 0. A
heartbeat without an answer may have been the one that told a new assignment, which the broker tells
once: the next one says everything, and so asks for all. While
a new member has no partitions yet it beats quickly, since the first assignment may be computed
just after the first heartbeat, and the interval that the broker names is seconds long.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar
from uuid import UUID

from shoal.client.cluster import Cluster
from shoal.client.errors import (
    STALE_COORDINATOR,
    ClientError,
    KafkaError,
    transient,
)
from shoal.protocol import codec
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode

#: Pauses between heartbeats of a member that waits for its first assignment.
EAGER_MS, EAGER_MS_MAX = 50, 500
#: A member that still has nothing after so many eager beats is a spare one: it takes its time.
EAGER_BEATS = 20
#: A member that leaves looks so long for a coordinator that takes it: time enough for one that has
#: moved. One that is gone for longer ends the member's session by itself.
LEAVE_MS = 2_000
#: Between its tries, so that one comes soon after the coordinator is there.
_LEAVE_PAUSE_MS = 100
#: A member was put out of its group.
FENCED = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
Assignment = dict[UUID, tuple[int, ...]]


class Membership(ABC):
    """One member of one group, from `join` to `leave`."""

    api_key: ClassVar[ApiKey]

    def __init__(self, cluster: Cluster, group: str) -> None:
        self.cluster = cluster
        self.group = group
        self.member_id = str(cluster.environment.uuid())
        self.member_epoch = 0
        self.heartbeat_interval_ms = 5_000
        self.assignment: Assignment = {}
        self.failure: ClientError | None = None
        self._beats = 0
        #: The answer to the last heartbeat did not come.
        self._unsure = False
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def _body(self, *, whole: bool) -> dict[str, Any]:
        """The request: all that there is to say, as when joining, or what has changed."""

    def _assigned(self, given: Assignment) -> None:
        """The broker has told an assignment, which may be the one that the member has already."""
        if given != self.assignment:
            self.assignment = given
            self._changed.set()

    def _fenced(self) -> None:
        """The broker has put this member out: what it held may belong to others already."""
        self.assignment = {}

    async def join(self) -> None:
        """Send the first heartbeat and keep beating. Raises what the coordinator refuses."""
        await self.cluster.retrying(self._beat)
        self._task = asyncio.get_running_loop().create_task(self._beating())

    async def leave(self, epoch: int = -1) -> None:
        """Stop beating and tell the coordinator, within `LEAVE_MS`; one that is gone for longer is
        left alone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.member_epoch <= 0:
            return
        self.member_epoch = epoch
        goodbye = self._body(whole=False)
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(LEAVE_MS / 1000):
                await self.cluster.at_coordinator(
                    self.group,
                    self.api_key,
                    goodbye,
                    lane="coordinator",
                    pause_ms_max=_LEAVE_PAUSE_MS,
                )
        self.member_epoch = 0

    def hurry(self) -> None:
        """Send the next heartbeat now."""
        self._hurry.set()

    async def changed(self, timeout_s: float) -> bool:
        """Wait for an assignment or a failure since the last call; whether there was one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def check(self) -> None:
        """Raise what ended the membership, if anything did."""
        if self.failure is not None:
            raise self.failure

    async def _beating(self) -> None:
        backoff = self.cluster.backoff()
        while True:
            pause_ms = self.heartbeat_interval_ms
            if not self.assignment and self._beats < EAGER_BEATS:
                pause_ms = min(EAGER_MS << min(self._beats, 10), EAGER_MS_MAX, pause_ms)
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            try:
                await self._beat()
                backoff.reset()
            except ClientError as error:
                if not transient(error):
                    self.failure = error
                    self._changed.set()
                    return
                self.cluster.forget_coordinator(self.group)
                await backoff.pause()
                self._hurry.set()

    async def _beat(self) -> None:
        whole, self._unsure = self._unsure or self.member_epoch == 0, True
        answer = await self._send(self._body(whole=whole))
        code = answer.error_code
        if code in STALE_COORDINATOR:
            self.cluster.forget_coordinator(self.group)
        if code in FENCED and self.member_epoch != 0:
            self.member_epoch = 0
            self._beats = 0
            self._fenced()
            answer = await self._send(self._body(whole=True))
            code = answer.error_code
        if code:
            raise KafkaError(code, answer.error_message or f"group {self.group!r}")
        self._unsure = False
        self.member_epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self.heartbeat_interval_ms = max(codec.ms(answer.heartbeat_interval), 1)
        self._beats += 1
        if answer.assignment is not None:
            rows = answer.assignment.topic_partitions
            self._assigned({row.topic_id: tuple(sorted(row.partitions)) for row in rows})

    async def _send(self, body: Mapping[str, Any]) -> Any:
        node = await self.cluster.coordinator(self.group)
        return await self.cluster.request(node, self.api_key, body, lane="coordinator")

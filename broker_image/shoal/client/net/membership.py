"""Heartbeats of a group with broker-side assignment: share (KIP-932) and consumer (KIP-848) groups.

`Membership` owns one member's id, epoch and heartbeat task. Subclasses add their fields to the
heartbeat and act on assignments.

A fenced or unknown member joins again under the same id with epoch 0. A broker sends a new
assignment once. If a heartbeat's answer is lost, the assignment may be lost with it, so the next
heartbeat is a full one, which requests everything again. A new member without partitions sends
frequent heartbeats: its first assignment may be computed just after its first heartbeat, and the
regular interval is seconds long.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from shoal.client.errors import (
    STALE_COORDINATOR,
    ClientError,
    KafkaError,
    is_transient,
)
from shoal.protocol import codec
from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.client.net.cluster import Cluster
    from shoal.protocol.api import ApiKey

#: Milliseconds between heartbeats of a member that waits for its first assignment.
EAGER_MS, EAGER_MS_MAX = 50, 500
#: Number of frequent heartbeats. A member that still has no partition is a spare one and uses the
#: regular interval.
EAGER_BEATS = 20
#: Milliseconds to find a coordinator that accepts the leave request, enough if it has just moved.
#: If none does, the session timeout removes the member.
LEAVE_MS = 2_000
#: Milliseconds between attempts, short so that one arrives soon after the coordinator is back.
_LEAVE_PAUSE_MS = 100
#: Codes that mean that the member was removed from its group.
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
        #: Whether the last heartbeat got no answer.
        self._unsure = False
        self._hurry = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def _make_body(self, *, is_full: bool) -> dict[str, Any]:
        """Return the request: a full one, as for joining, or only the changed fields."""

    @property
    def _has_partitions(self) -> bool:
        return bool(self.assignment)

    def _read(self, assignment: Any) -> Assignment:
        """Read the assignment of a response."""
        entries = assignment.topic_partitions
        return {entry.topic_id: tuple(sorted(entry.partitions)) for entry in entries}

    def _on_assigned(self, assignment: Assignment) -> None:
        """Handle an assignment from the broker, which may equal the current one."""
        if assignment != self.assignment:
            self.assignment = assignment
            self._changed.set()

    def _on_fenced(self) -> None:
        """Handle being fenced: other members may already own this member's partitions."""
        self.assignment = {}

    async def join(self) -> None:
        """Send the first heartbeat and start the task. Raises the coordinator's refusal.

        If the call is cancelled, the member leaves: the coordinator may have added it.
        """
        try:
            await self.cluster.retry(self._beat)
        except asyncio.CancelledError:
            await self.leave()
            raise
        self._task = asyncio.get_running_loop().create_task(self._run_heartbeats())

    async def leave(self, epoch: int = -1) -> None:
        """Stop the heartbeats and send the leave request, for at most `LEAVE_MS`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self.member_epoch <= 0 and not self._unsure:
            return
        self.member_epoch = epoch
        goodbye = self._make_body(is_full=False)
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(LEAVE_MS / 1000):
                await self.cluster.request_coordinator(
                    self.group,
                    self.api_key,
                    goodbye,
                    lane="coordinator",
                    pause_ms_max=_LEAVE_PAUSE_MS,
                )
        self.member_epoch = 0
        self._unsure = False

    def hurry(self) -> None:
        """Send the next heartbeat immediately."""
        self._hurry.set()

    async def wait_for_change(self, timeout_s: float) -> bool:
        """Wait for an assignment or a failure since the last call; return whether there was one."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def check(self) -> None:
        """Raise the error that ended the membership, if any."""
        if self.failure is not None:
            raise self.failure

    async def _run_heartbeats(self) -> None:
        backoff = self.cluster.make_backoff()
        while True:
            pause_ms = self.heartbeat_interval_ms
            if not self._has_partitions and self._beats < EAGER_BEATS:
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
                if not is_transient(error):
                    self.failure = error
                    self._changed.set()
                    return
                self.cluster.forget_coordinator(self.group)
                await backoff.pause()
                self._hurry.set()

    async def _beat(self) -> None:
        is_full, self._unsure = self._unsure or self.member_epoch == 0, True
        answer = await self._send(self._make_body(is_full=is_full))
        code = answer.error_code
        if code in STALE_COORDINATOR:
            self.cluster.forget_coordinator(self.group)
        if code in FENCED and self.member_epoch != 0:
            self.member_epoch = 0
            self._beats = 0
            self._on_fenced()
            answer = await self._send(self._make_body(is_full=True))
            code = answer.error_code
        if code:
            raise KafkaError(code, answer.error_message or f"group {self.group!r}")
        self._unsure = False
        self.member_epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        # A body with own tags has plain milliseconds.
        interval_ms = getattr(answer, "heartbeat_interval_ms", None)
        if interval_ms is None:
            interval_ms = codec.to_ms(answer.heartbeat_interval)
        self.heartbeat_interval_ms = max(interval_ms, 1)
        self._beats += 1
        if answer.assignment is not None:
            self._on_assigned(self._read(answer.assignment))

    async def _send(self, body: Mapping[str, Any]) -> Any:
        node = await self.cluster.find_coordinator(self.group)
        try:
            return await self.cluster.request(node, self.api_key, body, lane="coordinator")
        except ClientError:
            self.cluster.forget_coordinator(self.group)
            raise

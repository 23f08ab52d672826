"""The committed metadata image of this node, and its subscribers.

`cluster.metadata_log` publishes each committed image here. All other parts of the server read the
image from the cache and do not depend on the quorum.

A change of the metadata is durable when it arrives here, so no listener may lose it. A listener
that the disk hinders applies what it can and raises. The cache keeps the delta for it, calls the
other listeners, and repeats the delta every `RETRY_MS` until the listener has applied it. A
listener with much to do goes on in later turns of the event loop (`Unfinished`). Listeners
therefore take a delta as the names of what may have changed, and bring themselves to the state of
the image. A delta may come twice, and together with later ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from shoal.log.errors import AppendRefused, CorruptLog, LogOffline
from shoal.metadata.delta import MetadataDelta, combine
from shoal.metadata.image import ImageScope, MetadataImage
from shoal.record.batch import CorruptBatch

Listener = Callable[[MetadataImage, MetadataDelta], None]
#: Interval at which deltas are repeated.
RETRY_MS = 1_000


class NotApplied(Exception):
    """A listener has not applied a part of a delta. The sentence says which, and why."""


class Unfinished(NotApplied):
    """A listener applies the rest of a delta in the next turns of the loop, then calls
    `MetadataCache.retry`."""


#: The errors of a disk and of its contents, which may be gone at the next attempt.
_DISK = (NotApplied, OSError, AppendRefused, LogOffline, CorruptLog, CorruptBatch)


class _Subscription:
    """A listener, and the deltas that it has not applied."""

    __slots__ = ("listener", "owed", "reason")

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.owed: list[MetadataDelta] = []
        #: Why the deltas were not applied; empty while the listener goes on.
        self.reason = ""


class MetadataCache:
    """Owns the committed image. It is empty until the metadata log is opened."""

    def __init__(self, scope: ImageScope, log: Any = None) -> None:
        """`log` is the node's logger; without it nothing is logged."""
        self.image = MetadataImage(scope=scope)
        self._log = log
        self._subscriptions: list[_Subscription] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._finished_calls: list[Callable[[str | None], None]] = []

    def subscribe(self, listener: Listener, missed: MetadataDelta | None = None) -> None:
        """Call `listener` with each new image, and the delta that led to it. `missed` is repeated
        like a delta that the listener could not apply."""
        subscription = _Subscription(listener)
        self._subscriptions.append(subscription)
        if missed is not None and self._attempt(subscription, missed) is not None:
            subscription.owed.append(missed)

    def serve(self, image: MetadataImage) -> None:
        """Serve `image` without calling the listeners."""
        self.image = image

    def publish(self, image: MetadataImage, delta: MetadataDelta) -> str | None:
        """Serve `image`: call all listeners, in the order of their subscriptions, then resume
        those that wait.

        Return why a listener has not applied the delta yet, or None. The reason is empty while a
        listener goes on. An error that does not come from the disk is raised when all others have
        been called.
        """
        self.image = image
        reason: str | None = None
        failure: Exception | None = None
        try:
            for subscription in self._subscriptions:
                try:
                    missing = self._attempt(subscription, delta)
                except Exception as error:
                    failure = failure or error
                    continue
                if missing is not None:
                    subscription.owed.append(delta)
                    reason = missing if reason is None else reason or missing
        finally:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        if failure is not None:
            raise failure
        return reason

    def retry(self) -> None:
        """Repeat the deltas that listeners have not applied."""
        for index, subscription in enumerate(self._subscriptions):
            if not subscription.owed:
                continue
            owed = combine(subscription.owed, self.image)
            if self._attempt(subscription, owed) is not None:
                subscription.owed = [owed]
                continue
            if subscription.reason:
                self._note("warning", "the metadata is applied again")
            subscription.owed, subscription.reason = [], ""
            # Those behind this listener have seen the topics before it could serve them.
            topics = MetadataDelta(owed.created, owed.deleted, owed.changed)
            for following in self._subscriptions[index + 1 :]:
                if self._attempt(following, topics) is not None:
                    following.owed.append(topics)
        self._call_if_finished()

    def call_when_finished(self, call: Callable[[str | None], None]) -> None:
        """Call `call` when no listener goes on, with what is not applied then."""
        self._finished_calls.append(call)
        self._call_if_finished()

    def _call_if_finished(self) -> None:
        if not any(s.owed and not s.reason for s in self._subscriptions):
            calls, self._finished_calls = self._finished_calls, []
            for call in calls:
                call(self.not_applied)

    @property
    def not_applied(self) -> str | None:
        """Why a listener could not apply the metadata, or None."""
        return next((s.reason for s in self._subscriptions if s.owed and s.reason), None)

    def _attempt(self, subscription: _Subscription, delta: MetadataDelta) -> str | None:
        """Call a listener. Return why it could not apply the delta, or None."""
        try:
            subscription.listener(self.image, delta)
        except Unfinished:
            subscription.reason = ""
            return ""
        except _DISK as error:
            reason = str(error)
            if reason != subscription.reason:
                self._note("error", "metadata is not applied and will be repeated", error=reason)
            subscription.reason = reason
            return reason
        return None

    def _note(self, level: str, event: str, **facts: str) -> None:
        if self._log is not None:
            getattr(self._log, level)(event, **facts)

    async def wait_until(self, holds: Callable[[MetadataImage], bool]) -> None:
        """Wait for an image for which `holds` returns true."""
        while not holds(self.image):
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed

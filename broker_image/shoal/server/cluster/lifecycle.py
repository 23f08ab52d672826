"""The session of this broker with the controller: registration, heartbeats, shutdown (KIP-631).

Join: wait for a controller, register (fenced), and wait until the image has the registration. Then
the metadata is as new as this start. Enter: once the logs are open, heartbeats ask the controller
to unfence this broker. Leave: ask the controller to move the partitions that this broker leads, for
a limited time, then stop.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Any

from shoal.metadata import controller
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ApiError, ErrorCode
from shoal.server.cluster.controller import is_gone

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from shoal.log.directory import LogDirectory
    from shoal.metadata.delta import MetadataDelta
    from shoal.metadata.image import MetadataImage
    from shoal.server.cluster.controller_channel import ControllerChannel
    from shoal.server.cluster.quorum import MetadataQuorum
    from shoal.server.cluster.registration import Registration
    from shoal.server.metadata_cache import MetadataCache
    from shoal.server.node import Node

#: Longest controlled shutdown.
CONTROLLED_SHUTDOWN_S = 20.0
#: Timeout of a connection to the advertised address.
ADVERTISED_TIMEOUT_S = 5.0
#: How long a host name is tried: a pod of Kubernetes starts before its name resolves to it.
NAME_TIMEOUT_S = 30.0
#: A controlled shutdown ends after this time without an answer of a controller.
NO_CONTROLLER_S = 3.0
#: The pause between two attempts to register.
_RETRY_S = 0.1


class JoinError(Exception):
    """Why this node cannot join its cluster, as a sentence with the remedy."""


class BrokerLifecycle:
    """Owns the broker's session with the controller."""

    def __init__(
        self,
        node: Node,
        cache: MetadataCache,
        directory: LogDirectory,
        registration: Registration,
        quorum: MetadataQuorum,
        channel: ControllerChannel,
    ) -> None:
        self._node = node
        self._cache = cache
        self._directory = directory
        self._registration = registration
        self._quorum = quorum
        self._channel = channel
        self._heartbeat_calls: list[Callable[[], None]] = []
        self._drains: list[Callable[[], Awaitable[None]]] = []
        self.broker_epoch = -1
        self._beat = asyncio.Event()
        self._moved = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None
        self._stopping = False
        self._may_stop = asyncio.Event()
        self._ready = False
        self._answered_at = 0.0
        #: A controller has answered that this broker is fenced, and the metadata with the new
        #: leaders has not arrived.
        self.is_put_out = False
        #: The last probes found no process at the addresses of the other brokers.
        self._alone = False

    def on_heartbeat(self, call: Callable[[], None]) -> None:
        """Call `call` after each heartbeat, whether a controller answered it or not."""
        self._heartbeat_calls.append(call)

    def add_handover_hook(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Await `drain()` before this broker asks to hand over the partitions that it leads."""
        self._drains.append(drain)

    # Join.

    async def join(self) -> None:
        """Register, and catch up with the metadata. Raises `JoinError`."""
        self._cache.subscribe(self._on_metadata_changed)
        self._channel.on_leader(self._beat.set)
        limit_ms = self._node.config["initial.broker.registration.timeout.ms"]
        try:
            async with asyncio.timeout(limit_ms / 1000):
                self.broker_epoch = await self._register()
                while not self._is_registered():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            voters = ", ".join(map(str, self._quorum.raft.voters.latest.ids))
            raise JoinError(
                f"No controller has registered broker {self._node.id} within {limit_ms} ms. Check"
                f" that a majority of the voters ({voters}) runs and is reachable, and that"
                " controller.quorum.voters is the same on all nodes."
            ) from None
        self._heart = asyncio.ensure_future(self._run_heartbeats())

    async def _reach_itself(self) -> None:
        """Check that the advertised address leads to this node. Raises `JoinError`."""
        name = self._node.cluster.inter_broker
        if name not in self._node.config.advertised:
            return
        (endpoint,) = [e for e in self._registration.get_endpoints() if e.name == name]
        try:
            await reach(endpoint.host, endpoint.port)
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "it does not answer"
            raise JoinError(
                f"This node does not answer at {endpoint.host}:{endpoint.port}, its address for"
                f" other brokers in advertised.listeners ({reason}). Set an address that leads to"
                " this node."
            ) from None

    def _is_registered(self) -> bool:
        """Whether the image has the registration of this start."""
        broker = self._cache.image.brokers.get(self._node.id)
        return broker is not None and broker.incarnation_id == self._registration.incarnation_id

    def _on_metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
        registered = image.brokers.get(self._node.id)
        if registered is not None and delta.configs:
            if registered.cordoned_log_dirs != self._registration.list_cordoned(image):
                self._beat.set()
        if self._node.id in delta.brokers:
            self.is_put_out = False
            self._moved.set()

    async def _register(self) -> int:
        image = self._registration.make_broker_image()
        fields = {
            "broker_id": self._node.id,
            "cluster_id": self._directory.cluster_id,
            "incarnation_id": self._registration.incarnation_id,
            "listeners": [e._asdict() for e in image.endpoints],
            "features": [
                {"name": name, "min_supported_version": low, "max_supported_version": high}
                for name, (low, high) in sorted(controller.SUPPORTED_FEATURES.items())
            ],
            "rack": image.rack,
            "log_dirs": list(image.log_dirs),
            "previous_broker_epoch": self._directory.stopped_epoch,
        }
        loop = self._node.loop
        taken_at = loop.time() + 1.5 * self._node.config["broker.session.timeout.ms"] / 1000
        while True:
            try:
                answer = await self._channel.request(
                    ApiKey.BROKER_REGISTRATION, fields, timeout_ms=60_000
                )
            except ApiError:
                await asyncio.sleep(_RETRY_S)
                continue
            match ErrorCode(answer.error_code):
                case ErrorCode.none:
                    self._directory.broker_epoch = answer.broker_epoch
                    return answer.broker_epoch
                # Until its session expires, a process that has ended looks alive.
                case ErrorCode.duplicate_broker_registration if loop.time() > taken_at:
                    raise JoinError(
                        f"node.id {self._node.id} is taken: a process with this id and another"
                        " data directory is in the cluster. Give this node its own id (--node-id),"
                        " or stop the other process first."
                    )
                case ErrorCode.inconsistent_cluster_id:
                    raise JoinError(
                        "The controllers belong to another cluster than"
                        f" {self._directory.cluster_id}, the cluster of this node. Correct"
                        " controller.quorum.voters, or set the other cluster's id (--cluster-id)"
                        " and an empty data directory."
                    )
                case ErrorCode.unsupported_version:
                    raise JoinError(
                        "The cluster's features are at levels that this release does not support:"
                        " run the release that the other brokers run."
                    )
            await asyncio.sleep(_RETRY_S)

    async def enter(self) -> None:
        """Wait until the controller has unfenced this broker, whose logs are open and whose
        listeners accept. Raises `JoinError`."""
        await self._reach_itself()
        self._ready = True
        self._beat.set()
        while self.fenced:
            self._moved.clear()
            await self._moved.wait()

    @property
    def fenced(self) -> bool:
        broker = self._cache.image.brokers.get(self._node.id)
        return broker is None or broker.fenced

    @property
    def is_lost(self) -> bool:
        """Whether this broker may be fenced without its knowledge.

        No controller has answered for the time of a session, and other brokers may be alive. They
        may lead the partitions of this broker by now.
        """
        overdue = self._heart is not None and not self._alone and self._is_overdue()
        return overdue or self.is_put_out

    def _is_overdue(self) -> bool:
        session_s = self._node.config["broker.session.timeout.ms"] / 1000
        return self._node.loop.time() > self._answered_at + session_s

    # Heartbeats.

    async def _run_heartbeats(self) -> None:
        interval_s = self._node.config["broker.heartbeat.interval.ms"] / 1000
        while True:
            answer = await self._send_heartbeat()
            delay_s = interval_s
            if answer is None or (self._ready and answer.is_fenced):
                delay_s = min(delay_s, _RETRY_S)
            self._alone = answer is None and self._is_overdue() and await self._is_alone()
            for call in self._heartbeat_calls:
                call()
            if answer is not None and self._stopping and answer.should_shut_down:
                self._may_stop.set()
            elif self._stopping:
                delay_s = min(delay_s, _RETRY_S)
            self._beat.clear()
            try:
                async with asyncio.timeout(delay_s):
                    await self._beat.wait()
            except TimeoutError:
                pass

    async def _is_alone(self) -> bool:
        """Whether the processes of all other brokers have ended, by probes of their ports."""
        probes = [
            is_gone(end.host, end.port)
            for id, broker in self._cache.image.brokers.items()
            if id != self._node.id
            and (end := broker.find_endpoint(self._node.cluster.inter_broker))
        ]
        return all(await asyncio.gather(*probes))

    async def _send_heartbeat(self) -> Any:
        """Send a heartbeat. Return the response, or None if it failed."""
        fields = {
            "broker_id": self._node.id,
            "broker_epoch": self.broker_epoch,
            "current_metadata_offset": self._cache.image.offset,
            "want_fence": not self._ready,
            "want_shut_down": self._stopping,
            "cordoned_log_dirs": self._registration.list_cordoned(self._cache.image),
        }
        timeout_ms = self._node.config["broker.session.timeout.ms"]
        sent_at = self._node.loop.time()
        try:
            answer = await self._channel.request(
                ApiKey.BROKER_HEARTBEAT, fields, timeout_ms=timeout_ms
            )
        except ApiError:
            return None
        if answer.error_code == ErrorCode.none:
            # The controller counts the session from the arrival of the request.
            self._answered_at = sent_at
            self.is_put_out = self._ready and answer.is_fenced and not self.fenced
            return answer
        if answer.error_code == ErrorCode.stale_broker_epoch:
            self.broker_epoch = await self._register()
            self._beat.set()
        return None

    # Leave.

    async def _await_handover(self) -> bool:
        """Wait until the controller permits the stop; return whether it did."""
        loop = self._node.loop
        end = loop.time() + CONTROLLED_SHUTDOWN_S
        self._answered_at = loop.time()
        while not self._may_stop.is_set():
            if loop.time() > end or loop.time() > self._answered_at + NO_CONTROLLER_S:
                return False
            try:
                async with asyncio.timeout(_RETRY_S):
                    await self._may_stop.wait()
            except TimeoutError:
                pass
        return True

    async def leave(self) -> None:
        """Hand over the partitions if other brokers run, then end the heartbeats."""
        if self._heart is None:
            return
        has_others = any(id != self._node.id for id in self._cache.image.running)
        hands_over = self._ready and has_others and self._node.config["controlled.shutdown.enable"]
        if hands_over:
            for drain in self._drains:
                await drain()
        self._stopping = True
        if hands_over:
            self._beat.set()
            if not await self._await_handover():
                self._node.log.warning("the broker stops without having handed over what it leads")
        self._heart.cancel()
        self._heart = None


async def reach(host: str, port: int) -> None:
    """Connect, and close the connection. Raises `OSError`, `TimeoutError`.

    A host name is retried: it may not resolve yet, or still resolve to an earlier pod.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (0.0 if _is_address(host) else NAME_TIMEOUT_S)
    while True:
        try:
            async with asyncio.timeout(ADVERTISED_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                return
        except (OSError, TimeoutError):
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(_RETRY_S)


def _is_address(host: str) -> bool:
    """Whether this is an IP address, which is not retried."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True

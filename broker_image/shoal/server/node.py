"""What every part of a node may use: its identity, its configs, its clock and its event loop."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from shoal.log.uuids import format_uuid
from shoal.server.cluster_config import ClusterConfig, make_cluster_config
from shoal.server.disk import DiskExecutor
from shoal.server.record_worker import RecordWorker
from shoal.server.system import System
from shoal.server.timers import Clock, Timers

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from shoal.server.config import BrokerConfig


class Node:
    """One broker or controller process, without any of the parts that it consists of.

    A part takes the node as its first argument, and after it the other parts that it uses.
    """

    def __init__(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, system: System | None = None
    ) -> None:
        """Raises `InvalidConfig`."""
        self.id = config.node_id
        self.config = config
        self.cluster: ClusterConfig = make_cluster_config(config)
        self.loop = loop
        self.system = System() if system is None else system
        self.log: Any = self.system.make_logger(broker=self.id)
        self.clock = Clock(self.system.wall_ns, self.system.monotonic_ns)
        self.timers = Timers(loop, self.clock)
        self.random = Random(self.system.random_bytes(16))
        self.disk = DiskExecutor(loop, self.log)
        self.record_worker = RecordWorker(loop)
        #: Why the process must end, as a sentence with its remedy; not done while the node works.
        self.failed: asyncio.Future[str] = loop.create_future()

    def fail(self, sentence: str) -> None:
        """End the process with that sentence."""
        if not self.failed.done():
            self.failed.set_result(sentence)

    def make_random_id(self) -> UUID:
        """Return a new id whose text does not start with a dash.

        Kafka excludes the dash too, because command line tools take it for an option.
        """
        while True:
            random_id = self.system.make_uuid()
            if not format_uuid(random_id).startswith("-"):
                return random_id

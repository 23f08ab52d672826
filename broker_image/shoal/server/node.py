"""What every part of a node may use: its identity, its settings, its clock and its event loop."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from shoal.server import logs
from shoal.server.cluster_config import ClusterConfig, cluster_config
from shoal.server.config import BrokerConfig
from shoal.server.disk import Disk
from shoal.server.timers import Clock, Timers


class Node:
    """One broker or controller process, without any of the parts that it consists of.

    A part takes the node as its first argument, and after it the other parts that it uses.
    """

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.id = config.node_id
        self.config = config
        self.cluster: ClusterConfig = cluster_config(config)
        self.loop = loop
        self.log: Any = logs.get(broker=self.id)
        self.clock = Clock()
        self.timers = Timers(loop, self.clock)
        self.random = random.Random(os.urandom(16))
        self.disk = Disk(loop, self.log)

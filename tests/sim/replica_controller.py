"""A model of the controller for simulations of replication: one node that never fails.

It decides by the rules of KIP-497, KIP-841, KIP-903 and KIP-966 on partitions in plain dicts.
Brokers get its images over the network, late or never. Each heartbeat response brings what a broker
has missed. `metadata_cluster` tests the broker's real controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.replication.leadership import AlterPartition
    from sim.world import World

SESSION_MS = 900
NO_LEADER = -1


class Registered(NamedTuple):
    """A partition in the image of the brokers."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    elr: tuple[int, ...] = ()
    last_known: int = NO_LEADER


class Image(NamedTuple):
    """The brokers' image. `brokers` has the epochs of those that may join an ISR."""

    version: int
    partitions: tuple[Registered, ...]
    brokers: dict[int, int]


@dataclass
class BrokerState:
    epoch: int = -1
    fenced: bool = True
    heard_ms: int = 0
    incarnation: int = -1


@dataclass
class Controller:
    world: World
    brokers: Sequence[int]
    partitions: list[Registered]
    min_isr: int
    version: int = 0
    states: dict[int, BrokerState] = field(default_factory=dict)
    elections: int = 0
    shrinks: int = 0
    grows: int = 0

    def __post_init__(self) -> None:
        self.states = {b: BrokerState() for b in self.brokers}

    @property
    def image(self) -> Image:
        running = {b: s.epoch for b, s in self.states.items() if not s.fenced}
        return Image(self.version, tuple(self.partitions), running)

    # Requests of brokers.

    def register(self, broker: int, incarnation: int, clean: bool) -> int:
        """Register a broker that has started, and return its epoch. After an unclean stop it may
        have lost data."""
        state = self.states[broker]
        if state.incarnation == incarnation:
            return state.epoch
        first = state.incarnation < 0
        self.version += 1
        state.epoch, state.incarnation = self.version, incarnation
        state.fenced, state.heard_ms = True, self.world.now_ms
        for at, p in enumerate(self.partitions):
            if first:
                continue
            if not clean and broker in (*p.isr, *p.elr):
                self._leave(at, broker, lost=True)
            elif broker in p.isr:
                self._leave(at, broker, lost=False)
        return state.epoch

    def heartbeat(self, broker: int, epoch: int) -> None:
        state = self.states[broker]
        if state.epoch != epoch:
            return
        state.heard_ms = self.world.now_ms
        if state.fenced:
            state.fenced = False
            self.version += 1
            self._elect_all()

    def tick(self) -> None:
        """Fence brokers whose heartbeats are missing."""
        for broker, state in self.states.items():
            if not state.fenced and self.world.now_ms - state.heard_ms > SESSION_MS:
                state.fenced = True
                self.version += 1
                for at, p in enumerate(self.partitions):
                    if broker in p.isr:
                        self._leave(at, broker, lost=False)

    def alter(self, asked: AlterPartition) -> tuple[ErrorCode, Registered]:
        at = asked.partition_index
        p = self.partitions[at]
        if asked.leader_epoch != p.leader_epoch or asked.leader_id != p.leader:
            return ErrorCode.fenced_leader_epoch, p
        if asked.partition_epoch != p.partition_epoch:
            return ErrorCode.invalid_update_version, p
        for member, epoch in asked.isr:
            state = self.states[member]
            if state.fenced or epoch not in (-1, state.epoch):
                return ErrorCode.ineligible_replica, p
        if len(asked.isr) < len(p.isr):
            self.shrinks += 1
        else:
            self.grows += 1
        self._change(at, isr=asked.members)
        return ErrorCode.none, self.partitions[at]

    def prefer(self, at: int) -> None:
        """Elect another in-sync replica, if possible the preferred one."""
        p = self.partitions[at]
        for replica in p.replicas:
            if replica in p.isr and not self.states[replica].fenced and replica != p.leader:
                self._change(at, leader=replica)
                return

    def elect(self, at: int, replica: int) -> None:
        """Elect an in-sync replica."""
        assert replica in self.partitions[at].isr
        self._change(at, leader=replica)

    # Decisions.

    def _leave(self, at: int, broker: int, *, lost: bool) -> None:
        p = self.partitions[at]
        isr = tuple(r for r in p.isr if r != broker)
        leader = NO_LEADER if p.leader == broker else p.leader
        self._change(at, isr=isr, leader=leader, lost=broker if lost else None)
        self._elect(at)

    def _elect_all(self) -> None:
        for at in range(len(self.partitions)):
            self._elect(at)

    def _elect(self, at: int) -> None:
        p = self.partitions[at]
        if p.leader != NO_LEADER:
            return
        chosen = [r for r in p.replicas if r in p.isr and not self.states[r].fenced]
        chosen += [r for r in p.replicas if r in p.elr and not self.states[r].fenced]
        if not p.isr and not p.elr and p.last_known >= 0 and not self.states[p.last_known].fenced:
            chosen.append(p.last_known)
        if chosen:
            isr = p.isr if chosen[0] in p.isr else (chosen[0],)
            self._change(at, isr=isr, leader=chosen[0])

    def _change(
        self,
        at: int,
        *,
        isr: tuple[int, ...] | None = None,
        leader: int | None = None,
        lost: int | None = None,
    ) -> None:
        p = self.partitions[at]
        isr = p.isr if isr is None else isr
        leader = p.leader if leader is None else leader
        elr: tuple[int, ...] = ()
        if len(isr) < self.min_isr:
            out = dict.fromkeys((*p.elr, *p.isr))
            elr = tuple(r for r in out if r not in isr and r != lost)
        moved = leader != p.leader
        self.elections += moved and leader != NO_LEADER
        self.version += 1
        self.partitions[at] = p._replace(
            leader=leader,
            leader_epoch=p.leader_epoch + moved,
            partition_epoch=p.partition_epoch + 1,
            isr=isr,
            elr=elr,
            last_known=p.leader if p.leader != NO_LEADER else p.last_known,
        )
        self.world.trace(f"controller {at}: {self.partitions[at]}")

"""Scenes of replication: three brokers with one partition, and exactly one fault.

A scene is a function of a `ReplicaScene`. It succeeds with the real code. With the mutant that
`SCENES` names, it breaks the rule that `SCENES` names. Random faults find these mutants in one seed
of hundreds, or never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shoal.protocol.errors import ErrorCode
from shoal.record.records import build_batch
from sim.replica_cluster import CLIENT, LIVENESS_MS, ReplicaCluster
from sim.replica_node import LAG_TIME_MAX_MS, REQUEST_TIMEOUT_MS, Produce

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replication.partition import Partition
    from sim.replica_controller import Registered

#: How long one step of a scene may take.
STEP_MS = 5_000
#: Enough for a request and its response.
ROUND_TRIP_MS = 40
#: A value that leaves no room for another record in one fetch response.
LARGE = b"x" * 900
#: A sync that does not end within a scene.
NEVER_MS = (1_000_000, 1_000_000)


class ProduceOutcome:
    """A record that was sent to a leader; `code` is None until the response."""

    def __init__(self) -> None:
        self.code: ErrorCode | None = None


class ReplicaScene:
    """The cluster, in sync, with broker 1 as leader. Time passes only in `until` and `passes`."""

    def __init__(self, *, group_commit: bool = False) -> None:
        self.cluster = ReplicaCluster(1, partitions=1, group_commit=group_commit, clients=False)
        self.world, self.network = self.cluster.world, self.cluster.network
        self.network.duplication, self.network.straggler_ms = 0.0, 0
        self._sent = 0
        self.until(lambda: len(self.cluster.controller.image.brokers) == 3, "all brokers are in")
        if self.in_force.leader != 1:
            self.cluster.controller.elect(0, 1)
        self.leads(1)
        self.passes(REQUEST_TIMEOUT_MS)
        self.write(1, acknowledged=True)
        self.until(self.cluster.in_sync, "all replicas are in sync")

    @property
    def in_force(self) -> Registered:
        """The partition in the controller's state."""
        return self.cluster.controller.partitions[0]

    def replica(self, id: int) -> Partition:
        return self.cluster.nodes[id].partitions[0]

    def end(self, id: int) -> int:
        return self.replica(id).log.log_end_offset

    def until(self, done: Callable[[], bool], what: str, limit_ms: int = STEP_MS) -> None:
        if not done():
            happened = self.world.run_until(self.world.now_ms + limit_ms, done)
            assert happened, f"the scene waited in vain for: {what}"

    def passes(self, duration_ms: int) -> None:
        self.world.run_until(self.world.now_ms + duration_ms)

    def write(
        self, id: int, value: bytes = b"", *, acknowledged: bool = False, sequence: int = -1
    ) -> ProduceOutcome:
        """Send one record with acks=all to a broker, and wait for success if `acknowledged` is set.

        With a `sequence`, an idempotent producer sends it: the same record for the same sequence.
        """
        self._sent += 1
        value = b"%d %s" % (self._sent, value) if sequence < 0 else b"sequence %d" % sequence
        who = (-1, -1) if sequence < 0 else (1, 0)
        written = ProduceOutcome()
        node = self.cluster.nodes[id]

        def answered(code: ErrorCode, offset: int) -> None:
            written.code = code
            if code is ErrorCode.none:
                self.cluster.checker.note_acknowledged(0, offset, value)

        def reply(code: ErrorCode, offset: int) -> None:
            self.network.carry(id, CLIENT, lambda: answered(code, offset))

        data = bytes(
            build_batch(
                [(self.world.now_ms, None, value, ())],
                producer_id=who[0], producer_epoch=who[1], base_sequence=sequence,
            )
        )  # fmt: skip
        node.alive(lambda: node.produce(Produce(0, data), reply))()
        if acknowledged:
            self.until(lambda: written.code is ErrorCode.none, "an acknowledged record")
        return written

    # Faults.

    def cut(self, *links: tuple[int, int]) -> None:
        """Drop from now on what is sent over these links, from source to target."""
        self.network.cut |= set(links)

    def heal(self, *links: tuple[int, int]) -> None:
        self.network.cut -= set(links)

    def part(self, *ids: int) -> list[tuple[int, int]]:
        """Return the links between these brokers and the others, in both directions."""
        others = [id for id in self.cluster.nodes if id not in ids]
        return [link for a in ids for b in others for link in ((a, b), (b, a))]

    def elect(self, id: int) -> None:
        """Make the controller elect an in-sync replica, and pass on the image."""
        self.cluster.controller.elect(0, id)
        self.until(lambda: self.replica(id).is_leader, f"{id} leads")
        self.passes(ROUND_TRIP_MS)

    def kill(self, *ids: int) -> None:
        for id in ids:
            self.cluster.nodes[id].stop(lambda n: n - 1)

    def restart(self, id: int) -> None:
        """Stop a broker as on SIGTERM, start it again, and wait until it is in the ISR."""
        self.cluster.nodes[id].close()
        self.until(lambda: id not in self.in_force.isr, f"{id} leaves the ISR")
        self.start(id)
        self.until(lambda: id in self.in_force.isr, f"{id} is in the ISR")

    def lose_power(self, *ids: int) -> None:
        """Lose all unsynced data of these brokers."""
        for id in ids:
            self.cluster.nodes[id].stop(lambda n: 0)

    def start(self, *ids: int) -> None:
        for id in ids:
            self.cluster.nodes[id].sync_ms = (0, 4)
            self.cluster.nodes[id].start()

    def leads(self, id: int) -> None:
        self.until(lambda: self.in_force.leader == id, f"the controller elects {id}")
        self.until(lambda: self.replica(id).is_leader, f"{id} leads")

    def out_of_isr(self, id: int) -> None:
        self.until(lambda: id not in self.in_force.isr, f"{id} leaves the ISR")

    def rest(self) -> None:
        """End all faults, write one more record, and check that all replicas agree."""
        self.network.cut.clear()
        self.network.release()
        self.start(*[id for id, node in self.cluster.nodes.items() if not node.up])
        self.until(
            lambda: len(self.in_force.isr) == len(self.cluster.nodes), "a full ISR", LIVENESS_MS
        )
        self.until(lambda: self.replica(self.in_force.leader).is_leader, "a leader")
        self.write(self.in_force.leader, acknowledged=True)
        self.until(self.cluster.in_sync, "all replicas are in sync", LIVENESS_MS)
        self.cluster.check()


def the_answer_to_a_joining_is_lost(scene: ReplicaScene) -> None:
    """The controller adds broker 3 to the ISR, but the response to its leader is lost. More records
    are written while 3 is cut off, and then 3 is elected."""
    scene.cut(*scene.part(3))
    scene.write(1)
    scene.out_of_isr(3)
    scene.passes(ROUND_TRIP_MS)
    scene.cut((0, 1))
    scene.heal(*scene.part(3))
    scene.until(lambda: 3 in scene.in_force.isr, "3 joins the ISR")
    scene.cut(*scene.part(3))
    scene.passes(LAG_TIME_MAX_MS + REQUEST_TIMEOUT_MS)  # For the leader, 3 lags by now.
    scene.write(1)
    scene.passes(2 * REQUEST_TIMEOUT_MS)
    scene.kill(1, 2)
    scene.leads(3)
    scene.rest()


def the_request_to_leave_is_lost(scene: ReplicaScene) -> None:
    """The leader asks for an ISR without broker 3, but the request is lost. Broker 3 lacks the
    records that are written then, and is elected."""
    scene.cut(*scene.part(3))
    scene.write(1)
    scene.passes(LAG_TIME_MAX_MS - ROUND_TRIP_MS)
    scene.cut((1, 0))
    scene.passes(2 * ROUND_TRIP_MS)
    scene.write(1)
    scene.passes(2 * ROUND_TRIP_MS)
    scene.kill(1, 2)
    scene.leads(3)
    scene.rest()


def a_follower_is_far_behind(scene: ReplicaScene) -> None:
    """Broker 3 returns and misses more records than one fetch brings. The others die as soon as it
    is in the ISR."""
    scene.cut(*scene.part(3))
    scene.write(1)
    scene.out_of_isr(3)
    for _ in range(60):
        scene.write(1)
    scene.write(1, acknowledged=True)
    scene.heal(*scene.part(3))
    scene.until(lambda: 3 in scene.in_force.isr, "3 joins the ISR")
    scene.cut(*scene.part(3))
    scene.kill(1, 2)
    scene.leads(3)
    scene.rest()


def a_follower_fetches_and_loses_its_disk(scene: ReplicaScene) -> None:
    """Broker 3 has caught up and loses power before it joins the ISR, so the fetched records are
    not on its disk. It registers again and cannot reach its leader, which may now add it
    (KIP-903)."""
    scene.cluster.nodes[3].sync_ms = NEVER_MS
    scene.cut(*scene.part(3))
    scene.write(1)
    scene.out_of_isr(3)
    scene.write(1, acknowledged=True)
    scene.cut((1, 0))
    scene.heal(*scene.part(3))
    scene.until(lambda: scene.end(3) == scene.end(1), "3 has caught up")
    scene.passes(ROUND_TRIP_MS)
    scene.cut(*scene.part(3))
    scene.lose_power(3)
    scene.start(3)
    state = scene.cluster.controller.states[3]
    scene.until(
        lambda: state.incarnation == scene.cluster.nodes[3].incarnation and not state.fenced,
        "3 is registered",
    )
    scene.heal((1, 0))
    scene.passes(3 * REQUEST_TIMEOUT_MS)
    scene.kill(1, 2)
    scene.passes(2 * STEP_MS // 5)
    scene.rest()


def the_isr_is_below_its_minimum(scene: ReplicaScene) -> None:
    """The leader is cut off with a record that no other broker has, is the last in the ISR, and
    dies. A broker that left the ISR before is elected (KIP-966)."""
    scene.cut(*scene.part(1))
    scene.write(1)
    scene.until(lambda: scene.in_force.isr == (1,), "the leader is alone in the ISR")
    scene.passes(ROUND_TRIP_MS)
    scene.kill(1)
    scene.heal(*scene.part(1))
    scene.leads(2)
    scene.rest()


def a_follower_knows_an_old_high_watermark(scene: ReplicaScene) -> None:
    """Broker 3 has a committed record, but its high watermark is behind. A second record exists
    only there and on the dead leader. Broker 3 truncates to the next leader's log, and is elected
    (KIP-101)."""
    before = scene.end(1)
    scene.cut((1, 2))
    scene.write(1, LARGE)
    scene.write(1)
    scene.until(lambda: scene.end(3) == before + 2, "3 has both records")
    scene.cut((1, 3))
    scene.passes(ROUND_TRIP_MS)
    scene.heal((1, 2))
    leader = scene.replica(1)
    scene.until(lambda: leader.high_watermark == before + 1, "the first record is committed")
    scene.cut((1, 2))
    scene.passes(ROUND_TRIP_MS)
    scene.kill(1)
    scene.leads(2)
    scene.until(lambda: scene.end(3) < before + 2, "3 has cut its log")
    scene.kill(2)
    scene.leads(3)
    scene.rest()


def an_answer_comes_two_epochs_late(scene: ReplicaScene) -> None:
    """Broker 2 makes broker 3 truncate its log, in a response that arrives after another leader did
    the same. By then 3 has a committed record there, and is elected."""
    before = scene.end(1)
    scene.cut((1, 2))
    scene.write(1)
    scene.until(lambda: scene.end(3) == before + 1, "3 has a record that 2 lacks")
    scene.network.hold.add((2, 3))
    scene.elect(2)
    scene.until(lambda: bool(scene.network.deferred), "an answer is late")
    scene.heal((1, 2))
    scene.until(lambda: scene.end(1) == before, "1 has cut its log")
    scene.elect(1)
    scene.until(lambda: scene.end(3) == before, "3 has cut its log")
    scene.write(1, acknowledged=True)
    assert scene.end(3) == before + 1
    scene.elect(2)
    scene.cut((3, 2))
    scene.network.release()
    scene.passes(ROUND_TRIP_MS)
    scene.kill(1, 2)
    scene.leads(3)
    scene.rest()


def a_fetch_comes_two_epochs_late(scene: ReplicaScene) -> None:
    """A fetch of broker 3 starts after a record that it has truncated when the fetch arrives. The
    same broker leads again in a later epoch, and must not assume that 3 has that record."""
    before = scene.end(1)
    scene.passes(ROUND_TRIP_MS)
    scene.cut((1, 2))
    scene.network.hold.add((3, 1))
    scene.write(1)
    scene.until(lambda: scene.end(3) == before + 1, "3 has the record")
    scene.until(lambda: bool(scene.network.deferred), "its fetch is late")
    scene.cut((2, 1))
    scene.elect(2)
    scene.until(lambda: scene.end(3) == before, "3 has cut its log")
    assert scene.end(1) == before + 1
    scene.elect(1)
    scene.cut((1, 3))
    scene.heal((1, 2), (2, 1))
    scene.network.release()
    scene.until(lambda: scene.end(2) == before + 1, "2 has the record")
    scene.passes(ROUND_TRIP_MS)
    scene.kill(1, 2)
    scene.leads(3)
    scene.rest()


def a_leader_comes_back_as_a_follower(scene: ReplicaScene) -> None:
    """A leader that is cut off has an uncommitted record, and its producer waits. It must not
    acknowledge that record when the next leader's record at the same offset is committed."""
    scene.cut(*scene.part(1))
    scene.write(1)
    scene.passes(ROUND_TRIP_MS)
    scene.elect(2)
    scene.heal(*scene.part(1))
    scene.write(2, acknowledged=True)
    scene.until(scene.cluster.in_sync, "all replicas are in sync")
    scene.passes(ROUND_TRIP_MS)
    scene.rest()


def all_followers_lose_power(scene: ReplicaScene) -> None:
    """Records are acknowledged once they are on every disk of the ISR. The followers' disks are too
    slow, the leader dies, and the followers lose power."""
    for id in (2, 3):
        scene.cluster.nodes[id].sync_ms = NEVER_MS
    scene.passes(2 * REQUEST_TIMEOUT_MS)  # Their last syncs that end soon.
    scene.write(1)
    scene.passes(REQUEST_TIMEOUT_MS)
    scene.kill(1)
    scene.leads(2)
    scene.lose_power(2, 3)
    scene.passes(STEP_MS // 2)
    scene.start(2, 3)
    scene.leads(2)
    scene.rest()


def all_replicas_restart_before_they_answer(scene: ReplicaScene) -> None:
    """A producer has no responses to four batches that all replicas have. Each replica restarts
    from a snapshot, which has only the last batch, and the producer sends all four again."""
    scene.write(1, sequence=0, acknowledged=True)
    scene.cut((1, CLIENT))
    for sequence in range(1, 5):
        scene.write(1, sequence=sequence)
    scene.until(scene.cluster.in_sync, "all replicas have the batches")
    for id in scene.cluster.nodes:
        scene.restart(id)
    leader = scene.in_force.leader
    scene.leads(leader)
    scene.heal((1, CLIENT))
    again = [scene.write(leader, sequence=sequence) for sequence in range(1, 5)]
    scene.until(lambda: all(w.code is ErrorCode.none for w in again), "they are acknowledged")
    scene.rest()


class Case(NamedTuple):
    """A scene, and the rules by which it finds a mutant."""

    mutant: str
    caught_by: tuple[str, ...]
    scene: Callable[[ReplicaScene], None]
    group_commit: bool = False

    def play(self) -> None:
        self.scene(ReplicaScene(group_commit=self.group_commit))


LOST = ("acknowledged", "committed_prefix")
SCENES = [
    Case("commits_by_itself", LOST, a_leader_comes_back_as_a_follower),
    Case("shrinks_before_the_controller_does", LOST, the_request_to_leave_is_lost),
    Case("forgets_who_joins", LOST, the_answer_to_a_joining_is_lost),
    Case("takes_silence_for_refusal", LOST, the_answer_to_a_joining_is_lost),
    Case("joins_before_it_has_caught_up", LOST, a_follower_is_far_behind),
    Case("joins_as_its_earlier_self", LOST, a_follower_fetches_and_loses_its_disk),
    Case("commits_below_min_isr", LOST, the_isr_is_below_its_minimum),
    Case("cuts_to_its_high_watermark", LOST, a_follower_knows_an_old_high_watermark),
    Case("takes_answers_of_another_epoch", LOST, an_answer_comes_two_epochs_late),
    Case("answers_any_epoch", LOST, a_fetch_comes_two_epochs_late),
    Case("acknowledges_in_a_later_epoch", LOST, a_leader_comes_back_as_a_follower),
    Case(
        "forgets_what_a_snapshot_left_out", ("sequence",), all_replicas_restart_before_they_answer
    ),
    Case("fetches_on_before_its_cut_is_durable", LOST, all_followers_lose_power, group_commit=True),
]

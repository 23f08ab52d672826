"""Ids in files: what a leader knows with little memory, though files are lost and it is killed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.log import dedup_store
from shoal.log.config import LogConfig
from shoal.log.dedup_file import SUFFIX
from shoal.log.deduplication import find_contents
from shoal.log.errors import AppendRefused
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.records import build_batch, read_records
from shoal.replication.partition import Partition
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.log.appends import LogAppendInfo
    from shoal.log.deduplication import Deduplication

WINDOW_MS = 10_000
#: A table has two ids.
MEMORY_BYTES = 100
CONFIG = LogConfig(
    shoal_deduplication_window_ms=WINDOW_MS, shoal_deduplication_memory_bytes=MEMORY_BYTES
)


class Leader:
    """A leader whose work on files is done when the test says so."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.storage = MemoryStorage()
        self.config = config
        self.now_ms = 1_000_000
        self.epoch = 0
        #: What was said about damaged files.
        self.complaints: list[str] = []
        #: Bytes of the log that were read to find ids.
        self.read_bytes = 0
        self.start()

    def start(self) -> None:
        """Start, also again, in another epoch."""
        self.epoch += 1
        log = Log.open(self.storage, "t-0", self.config, now_ms=self.now_ms, clean=False)
        self.partition = Partition(
            "t",
            UUID(int=1),
            0,
            log,
            node_id=1,
            leader_id=1,
            leader_epoch=self.epoch,
            isr=(1,),
            replicas=(1,),
            id_work_requested=lambda _partition: None,
        )

    @property
    def deduplication(self) -> Deduplication:
        assert self.partition.deduplication is not None
        return self.partition.deduplication

    def list_files(self) -> list[str]:
        names = self.storage.list_directory("t-0")
        return [f"t-0/{name}" for name in names if name.endswith(SUFFIX)]

    def work(self, steps_max: int = 1 << 30) -> None:
        """Do steps of the work as a broker does."""
        for _ in range(steps_max):
            deduplication = self.partition.deduplication
            if deduplication is None:
                return
            index, store = deduplication.index, deduplication.store
            if deduplication.failure is not None:
                store.damaged.append(deduplication.failure)
                self.partition.deduplication = None
            self.complaints += map(str, store.damaged)
            for path in (*index.garbage, *(error.path for error in store.damaged)):
                self.storage.remove(path)
            index.garbage.clear()
            store.damaged.clear()
            if self.partition.deduplication is None:
                return
            work = deduplication.find_work(self.now_ms)
            if work is not None:
                work.step()
                if work.is_done:
                    deduplication.finish_work(work)
            elif not deduplication.is_ready:
                data = deduplication.read()
                self.read_bytes += len(data)
                deduplication.note(find_contents(data))
            else:
                break

    def put(self, names: Sequence[str]) -> LogAppendInfo:
        """Append a batch, again until the leader takes it."""
        records = [(self.now_ms, None, b"v", (("shoal.dedup.id", n.encode()),)) for n in names]
        for _ in range(20):
            try:
                return self.partition.append(build_batch(records), now_ms=self.now_ms)
            except AppendRefused as error:
                if error.code is not ErrorCode.not_leader_or_follower:
                    raise
                self.work()
        raise AssertionError("the leader takes no batch")

    def sync(self) -> None:
        sync = self.partition.log.begin_sync()
        if sync is not None:
            sync.run()
            self.partition.log.finish_sync(sync, None)

    def read(self) -> list[tuple[int, str, int]]:
        """Return offset, id and time of all records in the log."""
        data = self.partition.log.read(0, 1 << 30).data
        return [
            (r.offset, (dict(r.headers)["shoal.dedup.id"] or b"").decode(), r.timestamp_ms)
            for at, _ in iter_headers(data)
            for r in read_records(data, at)
        ]


def put_all(leader: Leader, names: Sequence[str]) -> None:
    for name in names:
        leader.put([name])
        leader.work()


NAMES = [f"job {number}" for number in range(100)]


def test_ids_beyond_the_memory_are_found_in_files() -> None:
    leader = Leader()
    put_all(leader, NAMES)
    index = leader.deduplication.index
    assert len(index) == 100
    assert sum(map(len, index.files)) >= 96
    # Each file is larger than the one behind it.
    assert len(index.files) <= 7
    assert len(leader.list_files()) == len(index.files)
    assert [leader.put([name]).known_offset for name in NAMES] == list(range(100))
    assert leader.put(["other"]).known_offset == -1


def test_a_new_leader_reads_of_the_log_only_what_is_behind_the_files() -> None:
    leader = Leader()
    put_all(leader, NAMES)
    end = leader.deduplication.index.files[-1].range.end
    # What is synced survives a power loss, and files are.
    leader.sync()
    leader.storage.crash(lambda _count: 0)
    leader.start()
    assert [leader.put([name]).known_offset for name in NAMES] == list(range(100))
    size = len(leader.partition.log.read(0, 1 << 30).data)
    assert leader.read_bytes == size * (100 - end) // 100
    # Its own file, the first one as well, continues those.
    others = ["other 1", "other 2"]
    put_all(leader, others)
    leader.start()
    assert [leader.put([name]).known_offset for name in (*NAMES, *others)] == list(range(102))


def test_the_latest_file_with_an_id_counts() -> None:
    """In the one before, it has expired."""
    leader = Leader()
    put_all(leader, ["a", "b", "c"])
    leader.now_ms += WINDOW_MS - 1_000
    put_all(leader, ["d"])
    leader.now_ms += 2_000
    put_all(leader, ["a", "e"])
    assert [len(file) for file in leader.deduplication.index.files] == [4, 2]
    assert leader.put(["a"]).known_offset == 4


def test_files_expire_with_their_ids() -> None:
    leader = Leader()
    for round_number in range(15):
        put_all(leader, [f"{round_number} {name}" for name in NAMES[:20]])
        leader.now_ms += WINDOW_MS // 4
    leader.put(["last"])
    leader.work()
    index = leader.deduplication.index
    assert len(index) <= 81
    assert index.files[0].range.end > index.floor
    assert sum(map(len, index.files)) <= 2 * len(index)
    assert len(leader.list_files()) == len(index.files)
    assert leader.put(["0 job 3"]).known_offset == -1
    leader.now_ms += WINDOW_MS
    leader.put(["last"])
    leader.work()
    assert leader.list_files() == []


def test_no_more_ids_than_fit_into_memory_wait_for_the_disk() -> None:
    leader = Leader()
    for name in NAMES[:4]:
        leader.partition.append(build_batch(make_records(leader, name)), now_ms=leader.now_ms)
    with pytest.raises(AppendRefused, match="still being written") as refused:
        leader.partition.append(build_batch(make_records(leader, "x")), now_ms=leader.now_ms)
    assert refused.value.code is ErrorCode.not_leader_or_follower
    assert leader.put([NAMES[0]]).known_offset == 0
    leader.work()
    assert leader.put(["x"]).known_offset == -1


def make_records(leader: Leader, name: str) -> list[Any]:
    return [(leader.now_ms, None, b"v", (("shoal.dedup.id", name.encode()),))]


def test_a_full_disk_is_tried_again_later() -> None:
    leader = Leader()
    put_all(leader, NAMES[:9])
    leader.storage.fault = refuse_ids
    with pytest.raises(OSError, match="full"):
        put_all(leader, NAMES[9:20])
    leader.storage.fault = refuse_nothing
    leader.work()
    assert leader.deduplication.index.frozen is not None
    leader.now_ms += dedup_store.RETRY_MS // 2
    leader.work()
    assert leader.deduplication.index.frozen is not None
    leader.now_ms += dedup_store.RETRY_MS // 2 - 1_000
    leader.work()
    leader.now_ms += 1_000
    leader.work()
    assert leader.deduplication.index.frozen is None
    assert [name for name in leader.storage.list_directory("t-0") if name.endswith(".tmp")] == []


def refuse_nothing(_operation: str, _path: str) -> None:
    """The disk works."""


def refuse_ids(operation: str, path: str) -> None:
    if operation == "write" and SUFFIX in path:
        raise OSError(28, "full")


@pytest.mark.parametrize("number", range(3))
def test_the_ids_of_a_lost_file_come_from_the_log(number: int) -> None:
    leader = Leader()
    put_all(leader, NAMES)
    leader.storage.remove(leader.list_files()[number])
    leader.start()
    assert [leader.put([name]).known_offset for name in NAMES] == list(range(100))


def test_a_table_that_expires_while_it_is_written_is_not_used() -> None:
    leader = Leader()
    for name in NAMES[:3]:
        leader.put([name])
    leader.work(1)
    leader.now_ms += WINDOW_MS
    for name in NAMES[3:6]:
        leader.put([name])
    leader.work()
    assert [leader.put([name]).known_offset for name in NAMES[3:6]] == [3, 4, 5]
    assert leader.deduplication.index.files[0].range.first == 2


#: Buckets, their starts, the filter, the state, and the footer of a file with 64 ids.
@pytest.mark.parametrize("at", [0, 40, 965, 975, 1_000, -1, -30])
def test_a_damaged_file_is_named_and_the_ids_come_from_the_log(at: int) -> None:
    leader = Leader()
    put_all(leader, NAMES)
    path = leader.list_files()[0]
    damage(leader, path, at)
    leader.start()
    assert [leader.put([name]).known_offset for name in NAMES] == list(range(100))
    assert len(leader.complaints) == 1
    assert path in leader.complaints[0]
    assert path not in leader.list_files()


def damage(leader: Leader, path: str, at: int) -> None:
    file = leader.storage.open(path)
    at %= file.size()
    file.write(at, (bytes((file.read(at, 1)[0] ^ 0x10,)),))


def test_files_of_a_log_that_was_truncated_are_not_used() -> None:
    """Though it has as many records again, from another leader: their epoch is another one."""
    leader = Leader()
    put_all(leader, NAMES[:20])
    leader.partition.leadership = leader.partition.deduplication = None  # As `register` does.
    leader.partition.truncate(10)
    for name in NAMES[50:70]:
        batch = build_batch(make_records(leader, name))
        leader.partition.log.append(batch, now_ms=leader.now_ms, leader_epoch=leader.epoch + 1)
    leader.epoch += 1
    leader.start()
    assert leader.put([NAMES[3]]).known_offset == 3
    assert leader.put([NAMES[50]]).known_offset == 10
    assert leader.put([NAMES[15]]).known_offset == -1


def test_a_longer_window_reads_the_log_again() -> None:
    leader = Leader()
    put_all(leader, NAMES[:20])
    leader.now_ms += WINDOW_MS + 1_000
    put_all(leader, NAMES[20:40])
    leader.partition.log.config = leader.config = LogConfig(
        shoal_deduplication_window_ms=4 * WINDOW_MS, shoal_deduplication_memory_bytes=MEMORY_BYTES
    )
    assert leader.put([NAMES[3]]).known_offset == 3
    assert leader.put([NAMES[33]]).known_offset == 33


def test_files_go_with_the_window() -> None:
    leader = Leader()
    put_all(leader, NAMES[:20])
    leader.config = LogConfig()
    leader.start()
    assert leader.list_files() == []


def test_a_file_of_another_broker_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    put_all(leader, NAMES[:20])
    monkeypatch.setattr("shoal.record.dedup_ids._salt.value", b"another secret!!")
    leader.start()
    assert leader.put([NAMES[3]]).known_offset == 3
    assert leader.deduplication.index.files[0].path not in ("t-0/00000001.ids",)


def test_each_step_of_a_merge_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes no more than some entries, however many there are."""
    monkeypatch.setattr("shoal.log.dedup_file.STEP_ENTRIES", 100)
    config = LogConfig(
        shoal_deduplication_window_ms=WINDOW_MS, shoal_deduplication_memory_bytes=65_536
    )
    leader = Leader(config)
    sizes: list[int] = []

    def note_size(operation: str, path: str) -> None:
        if operation == "write" and SUFFIX in path:
            sizes.append(leader.storage.open(path).size())

    leader.put(["first"])
    leader.work()
    for number in range(12):
        leader.put([f"{number} {name}" for name in range(512)])
        leader.storage.fault = note_size
        leader.work()
        leader.storage.fault = refuse_nothing
    steps = [after - before for before, after in pairwise(sizes)]
    assert sum(map(len, leader.deduplication.index.files)) == 6_145
    assert max(steps) < 600 * 15
    assert leader.deduplication.index.size_bytes < 65_536
    names = [f"{number} {name}" for number in range(12) for name in (0, 100, 511)]
    assert [leader.put([name]).known_offset for name in names] == [
        1 + 512 * number + name for number in range(12) for name in (0, 100, 511)
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.lists(st.integers(0, 30), min_size=1, max_size=4, unique=True)
        ),
        st.tuples(st.just("later"), st.sampled_from([1_000, 4_000, 9_000, 12_000])),
        st.tuples(st.just("work"), st.integers(1, 6)),
        st.tuples(st.sampled_from(["start", "sync", "kill", "lose"]), st.none()),
        st.tuples(st.sampled_from(["damage", "delete"]), st.integers(0, 10_000)),
    ),
    max_size=50,
)


class Twin:
    """The log as it has to be: (offset, id, time)."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str, int]] = []

    def find(self, name: str, now_ms: int) -> int | None:
        for offset, other, at_ms in reversed(self.records):
            if other == name:
                return offset if now_ms - at_ms < WINDOW_MS else None
        return None


def disturb(leader: Leader, kind: str, number: int) -> None:
    """Do what may happen to a broker and its disk."""
    files = leader.list_files()
    if kind == "damage" and files:
        damage(leader, files[number % len(files)], number)
    elif kind == "delete" and files:
        leader.storage.remove(files[number % len(files)])
    elif kind in ("kill", "lose"):
        leader.storage.crash((lambda n: n - 1) if kind == "kill" else (lambda _n: 0))
    if kind in ("kill", "lose", "start"):
        leader.start()


@given(STEPS)
@settings(max_examples=scale_examples(150), deadline=None)
def test_the_log_has_each_id_once_whatever_happens_to_files(
    steps: list[tuple[str, Any]],
) -> None:
    """Killed at any step of the work, with damaged and lost files, and after power losses."""
    leader, twin = Leader(), Twin()
    for kind, value in steps:
        if kind == "later":
            leader.now_ms += value
        elif kind == "work":
            leader.work(value)
        elif kind == "sync":
            leader.sync()
        elif kind == "put":
            names = [f"{name}" for name in value]
            offsets = [twin.find(name, leader.now_ms) for name in names]
            appended = leader.put(names)
            if None not in offsets:
                assert appended.duplicate
            twin.records += [
                (appended.base_offset + at, name, leader.now_ms)
                for at, (name, offset) in enumerate(zip(names, offsets, strict=True))
                if offset is None
            ]
            assert leader.read() == twin.records
        else:
            disturb(leader, kind, value or 0)
            if kind == "lose":
                twin.records = leader.read()

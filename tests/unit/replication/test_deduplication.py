"""Unique records: what a leader appends, answers and remembers (shoal.deduplication.window.ms)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal.log.appends import AppendOrigin, LogAppendInfo
from shoal.log.config import LogConfig
from shoal.log.deduplication import STEP_BYTES, cut, find_contents
from shoal.log.errors import AppendRefused
from shoal.log.log import Log
from shoal.log.memory import MemoryStorage
from shoal.log.validation import ValidatedBatch, validate
from shoal.protocol.errors import ErrorCode
from shoal.record.batch import iter_headers
from shoal.record.control import build_marker
from shoal.record.records import build_batch, read_records
from shoal.replication.partition import Partition
from support.runs.example_counts import scale_examples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WINDOW_MS = 10_000
CONFIG = LogConfig(shoal_deduplication_window_ms=WINDOW_MS)


class Leader:
    """A partition of one replica, and the clock of its appends."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self._storage = MemoryStorage()
        self._config = config
        self.now_ms = 1_000_000
        self.start()

    def start(self) -> None:
        """Start, also again with the log of before."""
        log = Log.open(self._storage, "t-0", self._config, now_ms=self.now_ms, clean=False)
        self.partition = Partition(
            "t",
            UUID(int=1),
            0,
            log,
            node_id=1,
            leader_id=1,
            leader_epoch=3,
            isr=(1,),
            replicas=(1,),
            id_work_requested=self._work_on_ids,
        )

    def _work_on_ids(self, partition: Partition) -> None:
        """Do at once what a broker does in turns (`IdWork`)."""
        deduplication = partition.deduplication
        assert deduplication is not None
        while deduplication.failure is None:
            if (work := deduplication.find_work(self.now_ms)) is not None:
                while not work.is_done:
                    work.step()
                deduplication.finish_work(work)
            elif not deduplication.is_ready:
                deduplication.note(find_contents(deduplication.read()))
            else:
                break

    def put(self, ids: Sequence[str | None], **options: Any) -> LogAppendInfo:
        """Append a batch of records with those ids."""
        headers = [() if i is None else (("shoal.dedup.id", i.encode()),) for i in ids]
        value = options.pop("value", b"v")
        batch = build_batch([(self.now_ms, None, value, found) for found in headers], **options)
        return self.partition.append(batch, now_ms=self.now_ms)

    def end(self, producer_id: int, *, committed: bool) -> None:
        marker = build_marker(
            committed=committed,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=1,
            timestamp_ms=self.now_ms,
        )
        self.partition.append(marker, now_ms=self.now_ms, origin=AppendOrigin.COORDINATOR)

    def read(self) -> list[tuple[int, str]]:
        """Return offset and id of each data record in the log."""
        data = self.partition.log.read(0, 1 << 30).data
        return [
            (record.offset, (dict(record.headers).get("shoal.dedup.id") or b"").decode())
            for at, header in iter_headers(data)
            if not header.is_control
            for record in read_records(data, at)
        ]


def test_a_known_record_is_answered_with_the_offset_of_the_first_and_not_appended() -> None:
    leader = Leader()
    assert leader.put(["a"]).known_offset == -1
    leader.put(["b"])
    again = leader.put(["a"])
    assert (again.duplicate, again.known_offset, again.size) == (True, 0, 0)
    assert leader.read() == [(0, "a"), (1, "b")]


def test_records_without_an_id_are_all_appended() -> None:
    leader = Leader()
    for _ in range(2):
        leader.put([None, ""])
    assert [offset for offset, _ in leader.read()] == [0, 1, 2, 3]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_cut_and_its_other_records_keep_their_offsets(compression: str) -> None:
    leader = Leader()
    leader.put(["a"])
    appended = leader.put(["b", "a", None, "b", "c"], compression=compression)
    assert (appended.base_offset, appended.last_offset) == (1, 5)
    assert leader.read() == [(0, "a"), (1, "b"), (3, ""), (5, "c")]
    data = leader.partition.log.read(1, 1 << 20).data
    (_, header), *_ = iter_headers(data)
    assert header.compression == ("none", "gzip", "snappy", "lz4", "zstd").index(compression)


def test_the_first_of_two_equal_ids_in_a_batch_wins() -> None:
    leader = Leader()
    leader.put(["a", "a"])
    assert leader.read() == [(0, "a")]


def test_a_value_with_the_bytes_of_a_header_is_no_id() -> None:
    leader = Leader()
    value = b"\x1cshoal.dedup.id\x02a"
    for _ in range(2):
        leader.partition.append(
            build_batch([(leader.now_ms, None, value, (("other", value),))]), now_ms=leader.now_ms
        )
    assert leader.partition.log.log_end_offset == 2


def test_an_idempotent_producer_continues_behind_a_known_batch() -> None:
    """Its sequences are in the log, so another leader knows them as well."""
    leader = Leader()
    leader.put(["a", "b"])
    producer = {"producer_id": 7, "producer_epoch": 0}
    appended = leader.put(["a", "b"], base_sequence=0, **producer)
    assert (appended.known_offset, appended.last_offset) == (0, 3)
    # The producer did not get the answer.
    again = leader.put(["a", "b"], base_sequence=0, **producer)
    assert (again.duplicate, again.known_offset, again.last_offset) == (True, 0, 3)
    leader.start()
    leader.put(["c"], base_sequence=2, **producer)
    assert leader.read() == [(0, "a"), (1, "b"), (4, "c")]


def test_an_idempotent_producer_gets_the_same_answer_for_a_cut_batch_again() -> None:
    leader = Leader()
    leader.put(["a"])
    leader.put(["x"])
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    first = leader.put(["a", "b"], **producer)
    again = leader.put(["a", "b"], **producer)
    assert first.known_offset == again.known_offset == -1
    assert first.base_offset == again.base_offset == 2


def test_an_aborted_transaction_frees_its_ids_and_a_committed_one_does_not() -> None:
    leader = Leader()
    transaction: dict[str, Any] = {"producer_epoch": 0, "transactional": True}
    leader.put(["a", "b"], producer_id=7, base_sequence=0, **transaction)
    leader.put(["c"], producer_id=8, base_sequence=0, **transaction)
    assert leader.put(["a"]).known_offset == 0  # Its transaction is open.
    leader.end(7, committed=False)
    leader.end(8, committed=True)
    assert leader.put(["c"]).known_offset == 2
    assert leader.put(["a"]).known_offset == -1
    assert leader.put(["a"]).known_offset == 5
    leader.start()
    assert leader.put(["a"]).known_offset == 5
    assert leader.put(["c"]).known_offset == 2
    assert leader.put(["b"]).known_offset == -1


def test_an_id_is_known_for_the_window_also_after_a_restart() -> None:
    leader = Leader()
    leader.put(["a"])
    leader.now_ms += WINDOW_MS - 1
    assert leader.put(["a"]).known_offset == 0
    leader.start()
    assert leader.put(["a"]).known_offset == 0
    leader.now_ms += 1 + WINDOW_MS // 1_000
    assert leader.put(["a"]).known_offset == -1
    assert len(leader.read()) == 2


def test_truncated_ids_are_free_and_those_of_deleted_records_stay_known() -> None:
    leader = Leader()
    leader.put(["a"])
    leader.put(["b"])
    leader.partition.delete_records(1)
    assert leader.put(["a"]).known_offset == 0
    follower = leader.partition
    follower.leadership = follower.deduplication = None  # As `register` does.
    follower.truncate(1)
    assert leader.put(["b"]).known_offset == -1
    assert leader.put(["b"]).known_offset == 1


def test_more_ids_than_the_limit_are_refused_until_others_expire() -> None:
    config = LogConfig(shoal_deduplication_window_ms=WINDOW_MS, shoal_deduplication_ids_max=3)
    leader = Leader(config)
    leader.put(["a", "b", "c"])
    with pytest.raises(AppendRefused, match=r"shoal.deduplication.ids.max \(3\)") as refused:
        leader.put(["d"])
    assert refused.value.code is ErrorCode.policy_violation
    assert leader.put(["a"]).known_offset == 0
    leader.put([None])
    leader.now_ms += WINDOW_MS
    leader.put(["d"])


def make_batch(leader: Leader, *names: str) -> ValidatedBatch:
    """Return a compressed batch as a worker thread has validated it."""
    records = [(leader.now_ms, None, b"v", (("shoal.dedup.id", n.encode()),)) for n in names]
    batch = validate(bytes(build_batch(records, compression="zstd")), CONFIG, leader.now_ms)
    return batch._replace(in_worker=True)


def cut_in_worker(leader: Leader, batch: ValidatedBatch) -> ValidatedBatch:
    known = leader.partition.find_cut(batch, leader.now_ms)
    return batch._replace(cut=cut(batch, known)) if known else batch


def test_a_batch_of_the_worker_is_cut_there() -> None:
    leader = Leader()
    leader.put(["a"])
    for names in (("b", "a", "c"), ("b", "a", "c"), ("d",)):
        leader.partition.append(
            cut_in_worker(leader, make_batch(leader, *names)), now_ms=leader.now_ms
        )
    assert leader.read() == [(0, "a"), (1, "b"), (3, "c"), (4, "d")]


def put_another(leader: Leader) -> None:
    leader.put(["c"])


def abort(leader: Leader) -> None:
    leader.end(7, committed=False)


@pytest.mark.parametrize(
    ("change", "stored"),
    [
        (put_another, [(0, "a"), (1, "x"), (2, "c"), (3, "b")]),
        (abort, [(0, "a"), (1, "x"), (3, "b"), (4, "a"), (5, "c")]),
    ],
)
def test_a_batch_of_the_worker_is_sent_back_if_its_known_records_have_changed(
    change: Callable[[Leader], None], stored: list[tuple[int, str]]
) -> None:
    leader = Leader()
    leader.put(["a"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    leader.put(["x"])
    batch = make_batch(leader, "b", "a", "c", "x")
    made = cut_in_worker(leader, batch)
    change(leader)
    for late in (made, batch):
        with pytest.raises(AppendRefused, match="Try again") as refused:
            leader.partition.append(late, now_ms=leader.now_ms)
        assert refused.value.code is ErrorCode.not_leader_or_follower
    leader.partition.append(cut_in_worker(leader, batch), now_ms=leader.now_ms)
    assert leader.read() == stored


def test_a_batch_that_expands_too_far_to_be_cut_names_the_bound_and_its_known_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.log.deduplication.CUT_BYTES_MAX", 20)
    leader = Leader()
    leader.put(["a"])
    with pytest.raises(AppendRefused, match="more than 20 bytes") as refused:
        leader.put(["b", "a"], compression="zstd")
    assert refused.value.code is ErrorCode.invalid_record
    assert refused.value.record_errors == [(1, "The record's id is known at offset 0.")]


def test_until_the_ids_of_the_log_are_read_only_records_without_ids_are_appended() -> None:
    """Also the end of a transaction whose records are not read yet frees their ids."""
    leader = Leader()
    leader.put(["a"], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    leader.put(["b"])
    leader.start()
    begun: list[Partition] = []

    def begin(partition: Partition) -> None:
        assert partition.deduplication is not None
        partition.deduplication.is_working = True
        begun.append(partition)

    leader.partition.id_work_requested = begin
    for _ in range(2):
        with pytest.raises(AppendRefused, match="reads the ids") as refused:
            leader.put(["c"])
        assert refused.value.code is ErrorCode.not_leader_or_follower
    leader.put([None])
    leader.end(7, committed=False)
    assert begun == [leader.partition]
    deduplication = leader.partition.deduplication
    assert deduplication is not None
    while not deduplication.is_ready:
        deduplication.note(find_contents(deduplication.read()))
    assert leader.put(["b"]).known_offset == 1
    assert leader.put(["a"]).known_offset == -1


def test_a_long_log_is_read_in_steps() -> None:
    leader = Leader()
    for number in range(8):
        leader.put([f"{number}"], value=b"v" * 300_000)
    leader.start()
    steps: list[int] = []

    def read(partition: Partition) -> None:
        deduplication = partition.deduplication
        assert deduplication is not None
        while not deduplication.is_ready:
            steps.append(len(deduplication.read()))
            deduplication.note(find_contents(deduplication.read()))

    leader.partition.id_work_requested = read
    assert [leader.put([f"{number}"]).known_offset for number in range(8)] == list(range(8))
    assert len(steps) >= 3
    assert max(steps) <= STEP_BYTES


def test_only_the_records_of_the_window_are_read() -> None:
    leader = Leader(LogConfig(shoal_deduplication_window_ms=WINDOW_MS, index_interval_bytes=0))
    for number in range(100):
        leader.put([f"{number}"])
        leader.now_ms += 1_000
    leader.start()
    firsts: list[int] = []

    def read(partition: Partition) -> None:
        assert partition.deduplication is not None
        firsts.append(find_contents(partition.deduplication.read())[0].header.base_offset)

    leader.partition.id_work_requested = read
    leader.put([None])
    assert firsts[0] in range(85, 91)


def test_ids_are_read_again_after_the_topic_had_no_window() -> None:
    leader = Leader()
    leader.put(["a"])
    leader.partition.log.config = LogConfig()
    leader.put(["b"])
    leader.partition.log.config = CONFIG
    assert leader.put(["b"]).known_offset == 1


def test_a_log_without_a_window_and_a_compacted_one_ignore_ids() -> None:
    for config in (
        LogConfig(),
        LogConfig(shoal_deduplication_window_ms=1, cleanup_policy=("compact",)),
    ):
        leader = Leader(config)
        batch = build_batch([(1_000_000, b"k", b"v", (("shoal.dedup.id", b"a"),))])
        for _ in range(2):
            leader.partition.append(batch, now_ms=leader.now_ms)
        assert leader.partition.log.log_end_offset == 2


BATCHES = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "c", "d", "e", None]), min_size=1, max_size=5),
        st.sampled_from(["none", "zstd"]),
        st.sampled_from([None, 7, 8]),
        st.sampled_from(["", "", "start", "commit", "abort"]),
    ),
    max_size=25,
)


class Twin:
    """Offset of each known id, and the open transaction that its record is of."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, int | None]] = {}
        self._open: set[int] = set()

    def note(self, ids: Sequence[str | None], base_offset: int, transaction: int | None) -> None:
        for at, name in enumerate(ids):
            if name is not None and name not in self.known:
                self.known[name] = (base_offset + at, transaction)
        if transaction is not None:
            self._open.add(transaction)

    def end_transactions(self, leader: Leader, *, committed: bool) -> None:
        for ended in sorted(self._open):
            leader.end(ended, committed=committed)
        for name, (offset, transaction) in list(self.known.items()):
            if transaction is not None and committed:
                self.known[name] = (offset, None)
            elif transaction is not None:
                del self.known[name]
        self._open.clear()


@given(BATCHES, st.sampled_from([LogConfig().shoal_deduplication_memory_bytes, 200]))
@settings(max_examples=scale_examples(60))
def test_every_id_is_in_the_log_once(
    batches: list[tuple[list[str | None], str, Any, str]], memory_bytes: int
) -> None:
    """Whatever the batches, restarts and transactions: of each id, exactly one record is not
    aborted, and its offset is what the answers name. With little memory, most ids are in files."""
    config = LogConfig(
        shoal_deduplication_window_ms=WINDOW_MS, shoal_deduplication_memory_bytes=memory_bytes
    )
    leader, twin = Leader(config), Twin()
    sequences = {7: 0, 8: 0}
    aborted: set[int] = set()
    for ids, compression, producer, then in batches:
        options: dict[str, Any] = {"compression": compression}
        if producer is not None:
            options |= {"producer_id": producer, "producer_epoch": 0, "transactional": True}
            options["base_sequence"] = sequences[producer]
            sequences[producer] += len(ids)
        appended = leader.put(ids, **options)
        if appended.known_offset >= 0:
            assert ids[0] is not None
            assert appended.known_offset == twin.known[ids[0]][0]
        twin.note(ids, appended.base_offset, producer)
        if then == "start":
            leader.start()
        elif then:
            before = {offset for offset, _ in twin.known.values()}
            twin.end_transactions(leader, committed=then == "commit")
            aborted |= before - {offset for offset, _ in twin.known.values()}
        stored = {offset: name for offset, name in leader.read() if name and offset not in aborted}
        assert stored == {offset: name for name, (offset, _) in twin.known.items()}

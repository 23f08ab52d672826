"""Options and positions of the Spark source of consumer groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal_spark.offsets import BadOffset
from shoal_spark.options import InvalidOption, KeyRangeOptions
from shoal_spark.positions import KeyRangeOffset, from_json, limit_ends, to_json

RIGHT = {"kafka.bootstrap.servers": "127.0.0.1:1", "groupId": "g", "subscribe": "t"}
places = st.tuples(st.sampled_from("tu"), st.integers(0, 3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keyRange": "4"}, "unknown option 'keyRange'"),
        ({"keyRanges": "0"}, "'keyRanges' is 0; it must be between 1 and 256"),
        ({"keyRanges": "four"}, "'keyRanges' is 'four', not a whole number"),
        ({"groupId": ""}, "'groupId' is missing"),
        ({"groupId": "redrive.dlq"}, "'groupId': group redrive.dlq is reserved"),
        ({"group.id": "g"}, "'group.id' does not apply here: use groupId"),
        ({"minPartitions": "8"}, "'minPartitions' does not apply here: use keyRanges"),
        ({"startingOffsets": "first"}, "'first'; it must be latest or earliest"),
        ({"kafka.isolation.level": "committed"}, "'committed'; it must be read_uncommitted or"),
        ({"endingOffsets": "latest"}, "use Trigger.AvailableNow"),
        ({"kafka.enable.auto.commit": "true"}, "the source commits a batch to the group"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        KeyRangeOptions.from_options({**RIGHT, **options})


def test_defaults() -> None:
    found = KeyRangeOptions.from_options(RIGHT)
    assert (found.key_ranges, found.max_offsets, found.from_earliest) == (1, 0, False)
    assert (found.read_committed, found.fail_on_data_loss) == (False, True)
    assert KeyRangeOptions.from_options(
        {**RIGHT, "kafka.isolation.level": "read_committed"}
    ).read_committed


def test_an_offset_is_read_again() -> None:
    batch = KeyRangeOffset(
        3, "g", ("t", "u"), {("t", 0): 4, ("u", 1): 0}, {("t", 0): 9, ("u", 1): 0}
    )
    assert from_json(to_json(batch), "g", ("t", "u")) == batch


@pytest.mark.parametrize(
    ("group", "topics", "words"),
    [
        ("h", ("t",), "the checkpoint is of consumer group 'g', and the query's groupId is 'h'"),
        ("g", ("u",), "the checkpoint is of topics t, and the query subscribes to u"),
    ],
)
def test_a_checkpoint_of_another_query(group: str, topics: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadOffset, match=words):
        from_json(to_json(KeyRangeOffset(1, "g", ("t",))), group, topics)
    with pytest.raises(BadOffset, match="holds an offset that this source did not write"):
        from_json({"seq": 1, "ranges": "[]"}, "g", ("t",))


@given(
    behind=st.dictionaries(places, st.integers(-3, 1000), min_size=1),
    offsets_max=st.integers(0, 2000),
)
def test_a_batch_is_limited(behind: dict[tuple[str, int], int], offsets_max: int) -> None:
    """It is full unless there is less, and no partition with records is left out without need."""
    starts = dict.fromkeys(behind, 100)
    ends = {where: 100 + count for where, count in behind.items()}
    found = limit_ends(starts, ends, offsets_max)
    assert found.keys() == ends.keys()
    taken = {where: found[where] - 100 for where in found if behind[where] > 0}
    available = sum(count for count in behind.values() if count > 0)
    assert sum(taken.values()) == min(available, offsets_max or available)
    for where, count in taken.items():
        assert 0 <= count <= behind[where]
        assert count or offsets_max < len(taken)
    assert all(found[where] == ends[where] for where in behind if behind[where] <= 0)

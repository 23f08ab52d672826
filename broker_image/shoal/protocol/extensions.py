"""Fields of Shoal's brokers and client in Kafka's messages, beyond Kafka's schemas.

They are tagged fields (KIP-482), which other readers skip. `codec` adds them to the layouts of
kio's entities. A body without them is read like Kafka's, without these attributes. `features` names
what the fields are for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from shoal.protocol.features import KEY_HASH_VERSION
from shoal.protocol.schema import Field, Struct

#: The lowest tag of these fields, far above Kafka's, which count up from 0.
TAG_MIN = 1000
_DELAY = Struct(
    "Delay",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("delivery_count", "int16", default=0),
        Field("available_timestamp", "int64", default=0),
    ),
)
_DELAYS = (Field("delays", _DELAY, array=True, tag=1000, default=[]),)
#: Tag of the delay of released records (`protocol.share`).
RELEASE_DELAY_TAG = 1000
#: Tag of the reason of released and rejected records, a `protocol.reasons.FailureReason`.
FAILURE_REASON_TAG = 1001
_FAILURE_REASON = Struct(
    "FailureReason",
    True,
    tuple(
        Field(name, "string", default="")
        for name in ("exception_class", "message", "stacktrace", "code", "worker")
    ),
)
_FAILURE = (
    Field("release_delay_ms", "int64", tag=RELEASE_DELAY_TAG, default=-1),
    Field("reason", _FAILURE_REASON, nullable=True, tag=FAILURE_REASON_TAG, default=None),
)
#: Tag of a closed share session whose held records do not count as delivered.
UNDELIVERED_TAG = 1000
#: Tag of cancelled records whose locks are not renewed (`protocol.share`).
CANCELLED_TAG = 1000
_HELD = Struct(
    "HeldOffsets",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("delivery_count", "int16", default=0),
    ),
)
#: Dead-lettered offsets that hold their keys; in requests, those whose keys are released.
_HELD_OFFSETS = (Field("held_offsets", _HELD, array=True, tag=1000, default=[]),)
_FREED_OFFSETS = (Field("freed_offsets", _HELD, array=True, tag=1000, default=[]),)
_RANGE = Struct(
    "OffsetRange",
    True,
    (Field("first_offset", "int64", default=0), Field("last_offset", "int64", default=0)),
)
_CANCELLED = Struct(
    "CancelledRecords",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("outcome", "int8", default=0),
    ),
)
#: Offsets to cancel, and whether they get a dead letter.
_CANCELLATION = (
    Field("cancelled_offsets", _RANGE, array=True, tag=1001, default=[]),
    Field("dead_letter", "bool", tag=1002, default=False),
)
#: Progress of a group in the records of a partition whose keys have a hash in a range: all records
#: below the position are finished, and those in `finished` (`record.finished_offsets`).
_KEY_RANGE = Struct(
    "KeyRange",
    True,
    (
        Field("first_hash", "int64", default=0),
        Field("last_hash", "int64", default=0),
        Field("position", "int64", default=0),
        Field("finished", "bytes", default=b""),
        Field("gap_timestamp", "int64", default=-1),
    ),
)
_KEY_RANGES = (Field("key_ranges", _KEY_RANGE, array=True, tag=1000, default=[]),)
#: The answer to a commit of key ranges. All records below the stable offset are finished.
_INDIVIDUAL_COMMIT = Struct(
    "IndividualCommit",
    True,
    (
        Field("stable_offset", "int64", default=-1),
        Field("error_message", "string", nullable=True, default=None),
    ),
)
_COMMITTED = (
    Field("individual_commit", _INDIVIDUAL_COMMIT, nullable=True, tag=1000, default=None),
)
#: Fetch: the records of a partition whose keys have a hash in the range (`record.key_hash`).
_FETCHED_RANGE = Struct(
    "FetchedKeyRange",
    True,
    (Field("first_hash", "int64", default=0), Field("last_hash", "int64", default=0)),
)
#: A partition that members of a consumer group share, and the key ranges of one of them.
_SHARED_PARTITION = Struct(
    "SharedPartition",
    True,
    (
        Field("topic_id", "uuid"),
        Field("partition", "int32", default=0),
        Field("ranges", _FETCHED_RANGE, array=True, default=[]),
    ),
)
_SHARED = Field("key_ranges", _SHARED_PARTITION, array=True, tag=1000, default=[])
#: How many records a member got of key ranges of a partition since its last report.
_KEY_LOAD = Struct(
    "KeyLoad",
    True,
    (
        Field("first_hash", "int64", default=0),
        Field("last_hash", "int64", default=0),
        Field("records", "int64", default=0),
    ),
)
_KEY_LOADS = Struct(
    "KeyLoads",
    True,
    (
        Field("topic_id", "uuid"),
        Field("partition", "int32", default=0),
        Field("loads", _KEY_LOAD, array=True, default=[]),
    ),
)
_IN_FLIGHT = Struct(
    "InFlight",
    True,
    (
        Field("first_offset", "int64", default=0),
        Field("last_offset", "int64", default=0),
        Field("state", "int8", default=0),
        Field("delivery_count", "int16", default=0),
        Field("member_id", "string", default=""),
        Field("time_left_ms", "int64", default=-1),
        Field("failure", "string", tag=1000, default=""),
    ),
)
#: What a broker has of another's part of tenants' limits, and what it wants
#: (`coordinator.share.tenant_loans`).
_WISH = Struct(
    "TenantWish",
    True,
    (
        Field("name", "bytes", default=b""),
        Field("held", "int32", default=0),
        Field("wanted", "int32", default=0),
        Field("rate_wanted", "bool", default=False),
    ),
)
_WISHES = Struct(
    "TenantWishes",
    True,
    (
        Field("topic_id", "uuid"),
        Field("broker_id", "int32", default=-1),
        Field("broker_epoch", "int64", default=-1),
        Field("sequence", "int64", default=-1),
        Field("tenants", _WISH, array=True, default=[]),
    ),
)
_LOAN = Struct(
    "TenantLoan",
    True,
    (
        Field("name", "bytes", default=b""),
        Field("lent", "int32", default=0),
        Field("kept", "int32", default=0),
        Field("per_second", "float64", default=0.0),
    ),
)
#: The fields, by API and struct.
OWN_FIELDS: dict[tuple[int, str], tuple[Field, ...]] = {
    (1, "FetchPartition"): (
        Field("key_ranges", _FETCHED_RANGE, array=True, tag=1000, default=[]),
        Field("key_hash_version", "int8", tag=1001, default=KEY_HASH_VERSION),
    ),
    # Fetch: the offset from which to read on, as the records may end before it, and the reason of
    # a refusal.
    (1, "PartitionData"): (
        Field("next_offset", "int64", tag=1000, default=-1),
        Field("error_message", "string", tag=1001, default=""),
    ),
    (8, "OffsetCommitRequestPartition"): _KEY_RANGES,
    (8, "OffsetCommitResponsePartition"): _COMMITTED,
    # OffsetFetch: whether the response has key ranges, and the most ranges of a partition.
    (9, "OffsetFetchRequestGroup"): (Field("key_ranges_wanted", "bool", tag=1000, default=False),),
    (9, "OffsetFetchResponseGroup"): (Field("ranges_max", "int32", tag=1000, default=0),),
    (9, "OffsetFetchResponsePartitions"): _KEY_RANGES,
    # TxnOffsetCommit: how long the transaction may wait for its turn, and its first record.
    (28, "TxnOffsetCommitRequest"): (Field("order_timeout_ms", "int32", tag=1000, default=-1),),
    (28, "TxnOffsetCommitRequestPartition"): (
        *_KEY_RANGES,
        Field("first_offset", "int64", tag=1001, default=-1),
    ),
    (28, "TxnOffsetCommitResponsePartition"): _COMMITTED,
    # ConsumerGroupHeartbeat: what a member owns of shared partitions, the version of its hash of
    # keys if it may share some, how many records it got of them, and what it is assigned.
    (68, "ConsumerGroupHeartbeatRequest"): (
        _SHARED,
        Field("key_hash_version", "int8", tag=1001, default=0),
        Field("key_loads", _KEY_LOADS, array=True, tag=1002, default=[]),
    ),
    (68, "Assignment"): (_SHARED,),
    # ConsumerGroupDescribe: whether the response has key ranges.
    (69, "ConsumerGroupDescribeRequest"): (
        Field("key_ranges_wanted", "bool", tag=1000, default=False),
    ),
    (69, "Member"): (_SHARED,),
    # Envelope: 16 bytes that stay the same when the request is retried.
    (58, "EnvelopeRequest"): (Field("request_id", "bytes", tag=1000, default=b""),),
    (84, "PartitionResult"): _DELAYS,  # ReadShareGroupState response
    (85, "PartitionData"): _DELAYS,  # WriteShareGroupState
    (78, "AcknowledgementBatch"): _FAILURE,  # ShareFetch request
    (79, "AcknowledgementBatch"): _FAILURE,  # ShareAcknowledge request
    # ShareAcknowledge: the records whose renewal is refused because they are cancelled.
    (79, "PartitionData"): (Field("cancelled", _RANGE, array=True, tag=CANCELLED_TAG, default=[]),),
    (79, "ShareAcknowledgeRequest"): (
        Field("undelivered", "bool", tag=UNDELIVERED_TAG, default=False),
    ),
    (87, "PartitionResult"): _DELAYS,  # ReadShareGroupStateSummary response
    # What a leader asks another one to lend. A broker without the field lends nothing.
    (87, "ReadShareGroupStateSummaryRequest"): (
        Field("tenant_wishes", _WISHES, nullable=True, tag=1000, default=None),
    ),
    (87, "ReadShareGroupStateSummaryResponse"): (
        Field("tenant_loans", _LOAN, array=True, tag=1000, default=[]),
    ),
    # The offset in each partition from which the records in flight are listed.
    (90, "DescribeShareGroupOffsetsRequestTopic"): (
        Field("in_flight_from", "int64", array=True, tag=1000, default=[]),
    ),
    # `next_offset` is where the next page of records in flight begins, -1 after the last one.
    (90, "DescribeShareGroupOffsetsResponsePartition"): (
        *_HELD_OFFSETS,
        Field("in_flight", _IN_FLIGHT, array=True, tag=1001, default=[]),
        Field("next_offset", "int64", tag=1002, default=-1),
    ),
    (91, "AlterShareGroupOffsetsRequestPartition"): (*_FREED_OFFSETS, *_CANCELLATION),
    # What became of cancelled offsets (`protocol.share.CancelOutcome`).
    (91, "AlterShareGroupOffsetsResponsePartition"): (
        Field("cancelled", _CANCELLED, array=True, tag=1000, default=[]),
    ),
}


@cache
def get_defaults(api_key: int) -> dict[str, Any]:
    """Return the defaults of an API's fields, by name."""
    return {
        f.name: f.default for (key, _), own in OWN_FIELDS.items() if key == api_key for f in own
    }


@cache
def get_tags(api_key: int) -> frozenset[int | None]:
    """Return the tags of an API's fields."""
    return frozenset(f.tag for (key, _), own in OWN_FIELDS.items() if key == api_key for f in own)

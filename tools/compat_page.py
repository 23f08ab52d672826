"""Generate `docs/compat.md` from the table of handlers: `python tools/compat_page.py`.

`KAFKA` are the APIs that a broker of Apache Kafka 4.3.1 lists on its client listener, and
`KAFKA_CONTROLLERS` those of a controller listener. The page compares them with `HANDLERS`, so it
cannot claim what the broker does not support.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.log.validation import RECORD_ERRORS_MAX
from shoal.metadata.controller import SUPPORTED_FEATURES
from shoal.protocol import features
from shoal.protocol.api import ApiKey
from shoal.protocol.codec import BODY_SIZE_MAX, ENTRIES_MAX, largest_count
from shoal.protocol.feature_levels import SECURITY_FEATURE
from shoal.record.compression import EXPANDED_BYTES_MAX
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS, api_versions, describe_share_group_offsets
from shoal.server.handlers.create_topics import TOPICS_MAX
from shoal.server.network.pieces import PIECE_ENTRIES, PIECE_ENTRIES_OF

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.network.api import Api

KAFKA_VERSION = "4.3.1"
#: Lowest and highest version by API key.
KAFKA: dict[ApiKey, tuple[int, int]] = {
    ApiKey(key): span
    for key, span in {
        0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6),
        11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1),
        18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5),
        25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 5), 29: (1, 3), 30: (1, 3), 31: (1, 3),
        32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3),
        39: (1, 2), 40: (1, 2), 41: (1, 3), 42: (0, 2), 43: (0, 2), 44: (0, 1), 45: (0, 1),
        46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2),
        57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1),
        69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
        80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1),
        88: (0, 0), 89: (0, 0), 90: (0, 1), 91: (0, 0), 92: (0, 0),
    }.items()
}  # fmt: skip
_ON_BOTH = (
    1, 17, 18, 19, 20, 29, 30, 31, 32, 33, 36, 37, 38, 39, 40, 41, 43, 44, 45, 46, 49, 50, 51, 55,
    57, 60, 64, 80, 81,
)  # fmt: skip
#: The same on the listener of a controller.
KAFKA_CONTROLLERS: dict[ApiKey, tuple[int, int]] = {
    **{ApiKey(key): KAFKA[ApiKey(key)] for key in _ON_BOTH},
    ApiKey.VOTE: (0, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: (0, 1),
    ApiKey.END_QUORUM_EPOCH: (0, 1),
    ApiKey.ALTER_PARTITION: (2, 3),
    ApiKey.ENVELOPE: (0, 0),
    ApiKey.FETCH_SNAPSHOT: (0, 1),
    ApiKey.BROKER_REGISTRATION: (0, 4),
    ApiKey.BROKER_HEARTBEAT: (0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0),
    ApiKey.CONTROLLER_REGISTRATION: (0, 0),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0),
    ApiKey.UPDATE_RAFT_VOTER: (0, 0),
}
_KAFKA_ALL = {**KAFKA_CONTROLLERS, **KAFKA}
#: Supported feature levels of Kafka.
KAFKA_FEATURES = {
    "eligible.leader.replicas.version": (0, 1),
    "group.version": (0, 1),
    "kraft.version": (0, 1),
    "metadata.version": (7, 30),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
#: APIs that Kafka lists only under a condition that Shoal does not have.
CONDITIONAL = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "Kafka names it once a metrics reporter takes telemetry",
    ApiKey.PUSH_TELEMETRY: "Kafka names it once a metrics reporter takes telemetry",
}
_INTRODUCTION = f"""\
# Compatibility with Apache Kafka {KAFKA_VERSION}

Clients find out what a broker serves by ApiVersions, and choose versions that both sides know. This
page compares what Shoal answers with what Apache Kafka {KAFKA_VERSION} answers, on listeners of
brokers, which clients use, and on listeners of controllers (`controller.listener.names`). It is
made of the table of handlers, from which ApiVersions answers too.

`make compat` holds real clients against a real broker: librdkafka (confluent-kafka and kcat),
kafka-python, aiokafka, the Java clients, Kafka Streams and Kafka's command-line tools.

Kafka Streams works with both of its protocols, `classic` (the default) and `streams` (KIP-1071),
with `at_least_once` and `exactly_once_v2`. As in Kafka {KAFKA_VERSION}, streams groups have no
static members, no regular expressions for source topics, no warm-up tasks, and a topology that
never changes. [Kafka Streams](streams.md) runs an example with both protocols.
"""


def name(key: ApiKey) -> str:
    """Return an API's name in Kafka's schemas."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def _limits() -> str:
    """Return the rows of APIs with a lower limit on entries, the largest first."""
    by_limit: dict[int, list[str]] = {}
    for key in HANDLERS:
        if (limit := largest_count(key)) != ENTRIES_MAX:
            by_limit.setdefault(limit, []).append(name(ApiKey(key)))
    return "\n".join(
        f"| {', '.join(names)} | {limit:,} |" for limit, names in sorted(by_limit.items())[::-1]
    )


_RECORDS = f"""\
## Batches that only Shoal refuses

Kafka stores these batches, and readers fail on them. Shoal answers `INVALID_RECORD`:

* records of an uncompressed batch whose offset deltas are not 0, 1, 2 and so on;
* records of a compressed batch whose lengths do not match their fields;
* a key, value or header value with a length below -1, and varints of more than 32 or 64 bits;
* bytes behind the compressed data, or behind the batch;
* batches that expand past {EXPANDED_BYTES_MAX >> 20} MiB.

For a batch that cannot be decompressed Kafka answers `UNKNOWN_SERVER_ERROR`, Shoal
`INVALID_RECORD`; for an unknown codec Shoal answers `UNSUPPORTED_COMPRESSION_TYPE`. Shoal gives an
error message where Kafka gives none. An answer lists at most {RECORD_ERRORS_MAX:,} records.

## Large requests

A request may have {ENTRIES_MAX:,} entries in all its arrays together, such as topics and
partitions, and {BODY_SIZE_MAX >> 20} MiB without records. Kafka has only
`socket.request.max.bytes`. These limits are lower:

| APIs | entries |
| --- | --- |
{_limits()}

A larger request closes its connection, with a line in the log. So that other clients do not
wait, a broker handles {PIECE_ENTRIES} entries of a request at a time, and fewer if names are long.
CreateTopics of more than {PIECE_ENTRIES_OF[ApiKey.CREATE_TOPICS]} topics is therefore several
changes of the metadata, and the first of two topics with one name may be created. More than
{TOPICS_MAX:,} topics get `POLICY_VIOLATION`; in Kafka more than 5,000 of one partition do.

## Batches behind a refused one

An idempotent producer has up to five batches under way. If a broker refuses one with
`NOT_LEADER_OR_FOLLOWER`, `NOT_ENOUGH_REPLICAS` or another error after which the producer sends it
again, Shoal gives those behind it the same error. Kafka answers them with
`OUT_OF_ORDER_SEQUENCE_NUMBER` if the reason has gone by then, and librdkafka may write records
twice after that ([ADR 136](adr/0136-refuse-the-batches-behind-a-refused-one.md)).

After a change of leader, the first batch that breaks a producer's sequence gets
`NOT_LEADER_OR_FOLLOWER` once, since the batches before it may still be on their way from the former
leader ([ADR 139](adr/0139-send-back-a-batch-that-overtook-another.md)).

## Transactions

The coordinator gives the answers of Kafka 4.3.1 to each transaction request in each state, also
while markers are being written (`tests/compat/test_transaction_states.py` compares both). One
answer is that of a later release (KAFKA-20785): a producer that commits after the coordinator has
aborted its transaction, because `transaction.timeout.ms` has passed, gets `PRODUCER_FENCED`. Kafka
4.3.1 answers `INVALID_TXN_STATE`, which ends a thread of Kafka Streams.

## Strings that are not UTF-8

Shoal reads them as Kafka does, with U+FFFD for each invalid sequence. Only a request whose arrays
have more than 10,000 entries may not have such strings: reading it would keep other clients
waiting, and the broker closes the connection.

## Limit on records in flight

Kafka exceeds `share.partition.max.record.locks` by up to a batch, in both acquire modes. Shoal
never does: it delivers a larger batch in parts. After the limit is lowered, Shoal also delivers
released records only within the limit; Kafka does not bound them.

## Security on listeners of controllers

Kafka lists DescribeUserScramCredentials and DescribeDelegationToken on listeners of controllers. It
does not answer the first, and answers the second with `UNKNOWN_SERVER_ERROR`. Shoal answers both.

A client that may not describe users, and asks for all of them, gets no answer from Kafka on any
listener. Shoal answers `CLUSTER_AUTHORIZATION_FAILED`.

## Sessions of removed users

In Kafka, removing a SCRAM credential only refuses new logins. Shoal also closes the connections of
the user, unless `shoal.sasl.scram.disconnect.removed.users` is `false`.

## What only Shoal refuses

* CreateDelegationToken for an owner of another type than `User` gets `INVALID_PRINCIPAL_TYPE`. In
  Kafka, a client with `CREATE_TOKENS` on others may become a principal of any type.
* `errors.deadletterqueue.topic.name` of a group needs `WRITE` on the topic by the client that
  sets it, as the brokers write there what the group's members reject. Headers
  `__dlq.errors.*` that a record brings itself are not copied to the dead-letter topic.
* A member of a share group, and its share session, belong to the principal that joined. To another
  principal there is no such member (`UNKNOWN_MEMBER_ID`) and no such session
  (`SHARE_SESSION_NOT_FOUND`).
* The client id `__admin_client` lets brokers and super users write to internal topics. In Kafka, it
  lets everybody with `WRITE` on the topic.
"""


_NULL_TOPIC = (
    "Kafka fails to authorize a topic id that does not exist: the name is null. Shoal reports the"
    " unknown id, as Kafka does without an authorizer."
)
_UNKNOWN_STATE = "The state of a partition that does not exist. Both permit the request."
#: Answers that differ although the permissions are the same: the API, a part of Kafka's answer, a
#: part of Shoal's, and the reason. The permission matrix accepts no others.
ANSWERS: list[tuple[ApiKey, str, str, str]] = [
    (
        ApiKey.METADATA,
        "unknown_topic_or_partition",
        "'none'",
        "Shoal creates the topic before it answers; Kafka answers first.",
    ),
    (
        ApiKey.FETCH,
        "not_leader_or_follower",
        "unknown_topic_or_partition",
        "The fetch of a broker that has no replica. Both permit it.",
    ),
    (ApiKey.SHARE_FETCH, "unknown_server_error", "'none'", _NULL_TOPIC),
    (ApiKey.SHARE_ACKNOWLEDGE, "unknown_server_error", "'none'", _NULL_TOPIC),
    (
        ApiKey.ADD_PARTITIONS_TO_TXN,
        "unknown_topic_or_partition",
        "invalid_producer_id_mapping",
        "Between brokers, Shoal checks the producer before the topics. Both permit the request.",
    ),
    (
        ApiKey.READ_SHARE_GROUP_STATE,
        "invalid_request",
        "unknown_topic_or_partition",
        _UNKNOWN_STATE,
    ),
    (
        ApiKey.WRITE_SHARE_GROUP_STATE,
        "invalid_request",
        "unknown_topic_or_partition",
        _UNKNOWN_STATE,
    ),
]
#: How the page shows parts of answers that are no error codes.
_SHOWN = {"'none'": "`NONE`"}

_ANSWERS = """\
## Answers to clients with few permissions

Shoal and Kafka give the same answers to clients with the same permissions, in each version of the
APIs for clients. The nightly permission matrix compares them. The exceptions are:

| API | Kafka | Shoal | reason |
|---|---|---|---|"""


_EXTENSIONS = """\
## Requests that only Shoal has

Shoal's brokers and Shoal's client extend some requests by tagged fields with tags from 1000 on. A
broker lists each extension as a feature in ApiVersions to Shoal's client only, and the client uses
only listed ones. `shoal` reports it if a cluster lacks one. Permissions are those of the request.

| feature | request | what it adds |
|---|---|---|"""
_ADDED = {
    features.HEADERS_ONLY_FEATURE: ("ShareFetch", "acquires records without sending them"),
    features.RELEASE_DELAY_FEATURE: (
        "ShareFetch, ShareAcknowledge",
        "a release may have a delay",
    ),
    features.HELD_KEYS_FEATURE: (
        "AlterShareGroupOffsets",
        "releases keys that dead-lettered records hold (`shoal dlq skip`)",
    ),
    features.IN_FLIGHT_FEATURE: (
        "DescribeShareGroupOffsets",
        "lists the records in flight of the partitions that the broker leads, at most"
        f" {describe_share_group_offsets.IN_FLIGHT_MAX:,} ranges an answer (`shoal share inspect`)",
    ),
    features.INDIVIDUAL_COMMIT_FEATURE: (
        "OffsetCommit, TxnOffsetCommit, OffsetFetch",
        "commit and return finished offsets above the position ([cooperative.md](cooperative.md))",
    ),
    features.KEY_RANGES_FEATURE: (
        "Fetch",
        "leaves out records of other key ranges ([cooperative.md](cooperative.md#key-ranges))",
    ),
    features.GROUP_KEY_RANGES_FEATURE: (
        "ConsumerGroupHeartbeat, ConsumerGroupDescribe, OffsetCommit, OffsetFetch",
        "members share partitions, with a position for each key range "
        "([cooperative.md](cooperative.md#key-ranges-in-a-group))",
    ),
    features.COMMIT_ORDER_FEATURE: (
        "TxnOffsetCommit",
        "waits until what is below a transaction's first records is finished "
        "([cooperative.md](cooperative.md#outputs-in-the-partitions-order))",
    ),
}


def page(rows: Iterable[Api] = tuple(HANDLERS.values())) -> str:
    """Return the whole page."""
    served = {
        ApiKey(row["api_key"]): (row["min_version"], row["max_version"])
        for row in api_versions.served(rows)
    }
    on = {row.key: row.on for row in rows}
    lines = [
        _INTRODUCTION,
        "## APIs served\n",
        "| key | API | Shoal | Kafka | listeners | |",
        "|---:|---|---|---|---|---|",
    ]
    lines += [
        f"| {key.value} | {name(key)} | {_span(span)} | {_span(_KAFKA_ALL.get(key))} |"
        f" {_listeners(on[key])} | {_remark(key, span, on[key])} |"
        for key, span in served.items()
    ]
    lines += [
        "",
        "## APIs of Kafka that are not served\n",
        "ApiVersions does not list them, so clients report an unsupported API without a request."
        " If a client\nsends one anyway, the broker closes the connection. Kafka does the same for"
        " an API that it does not\nhave, or that it does not support on the listener.\n",
        "| key | API | Kafka | listeners |",
        "|---:|---|---|---|",
    ]
    lines += [
        f"| {key.value} | {name(key)} | {_span(span)} | {_listeners(kafka_listeners(key))} |"
        for key, span in sorted(_KAFKA_ALL.items())
        if key not in served
    ]
    lines += ["", _RECORDS, _ANSWERS]
    lines += [
        f"| {name(key)} | {_shown(kafka)} | {_shown(shoal)} | {reason} |"
        for key, kafka, shoal, reason in ANSWERS
    ]
    lines.append("")
    lines += ["## Features\n", "| feature | Shoal | Kafka |", "|---|---|---|"]
    lines += [
        f"| {feature} | {_span(SUPPORTED_FEATURES.get(feature))} | {_span(span)} |"
        for feature, span in {**KAFKA_FEATURES, SECURITY_FEATURE: None}.items()
    ]
    lines += ["", _EXTENSIONS]
    lines += [f"| `{name}` | {' | '.join(_ADDED[name])} |" for name in features.FEATURES]
    return "\n".join(lines) + "\n"


def _shown(answer: str) -> str:
    return _SHOWN.get(answer) or f"`{answer.upper()}`"


def kafka_listeners(key: ApiKey) -> Listeners:
    """Return the listeners on which Kafka lists an API."""
    found = Listeners(0)
    if key in KAFKA:
        found |= Listeners.BROKER
    if key in KAFKA_CONTROLLERS:
        found |= Listeners.CONTROLLER
    return found


def _listeners(on: Listeners) -> str:
    return ", ".join(str(kind.name).lower() for kind in on)


def _span(span: tuple[int, int] | None) -> str:
    if span is None:
        return "-"
    return f"{span[0]}-{span[1]}" if span[0] < span[1] else str(span[0])


def _remark(key: ApiKey, span: tuple[int, int], on: Listeners) -> str:
    if key not in _KAFKA_ALL:
        return CONDITIONAL[key]
    return "" if _KAFKA_ALL[key] == span and kafka_listeners(key) == on else "differs"


if __name__ == "__main__":
    print(page(), end="")

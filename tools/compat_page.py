"""Generate `docs/compat.md` from the table of handlers: `python tools/compat_page.py`.

`KAFKA` are the APIs that a broker of Apache Kafka 4.4.0 lists on its client listener, and
`KAFKA_CONTROLLERS` those of a controller listener. The page compares them with `HANDLERS`, so it
cannot claim what the broker does not support.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.coordinator.group.offsets.offsets import TOMBSTONES_MAX
from shoal.log.validation import RECORD_ERRORS_MAX
from shoal.metadata.controller import SUPPORTED_FEATURES
from shoal.protocol import features, reasons
from shoal.protocol.api import ApiKey
from shoal.protocol.codec import BODY_SIZE_MAX, ENTRIES_MAX, find_max_entries
from shoal.protocol.feature_levels import SECURITY_FEATURE
from shoal.protocol.schema import TAGS_MAX
from shoal.record.compression import EXPANDED_BYTES_MAX
from shoal.server.cluster_config import Listeners
from shoal.server.handlers import HANDLERS
from shoal.server.handlers.cluster import api_versions
from shoal.server.handlers.share import describe_share_group_offsets
from shoal.server.handlers.topics.create_topics import TOPICS_MAX
from shoal.server.network.pieces import PIECE_ENTRIES, PIECE_ENTRIES_OF

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.server.network.api import Api

KAFKA_VERSION = "4.4.0"
#: Lowest and highest version by API key.
KAFKA: dict[ApiKey, tuple[int, int]] = {
    ApiKey(key): span
    for key, span in {
        0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6),
        11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1),
        18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2), 22: (0, 5), 23: (2, 4), 24: (0, 5),
        25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3), 31: (1, 3),
        32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3),
        39: (1, 2), 40: (1, 2), 41: (1, 3), 42: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 1),
        46: (0, 0), 47: (0, 0), 48: (0, 1), 49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2),
        57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0), 66: (0, 2), 68: (0, 1),
        69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
        80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1),
        88: (0, 1), 89: (0, 1), 90: (0, 1), 91: (0, 0), 92: (0, 0), 93: (0, 0),
        94: (0, 0),
    }.items()
}  # fmt: skip
_ON_BOTH = (
    1, 17, 18, 19, 20, 29, 30, 31, 32, 33, 36, 37, 38, 39, 40, 41, 43, 44, 45, 46, 49, 50, 51, 55,
    57, 60, 64, 80, 81, 94,
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
    "metadata.version": (7, 33),
    "share.version": (0, 2),
    "streams.version": (0, 1),
    "transaction.version": (0, 2),
}
#: APIs that Kafka lists only under a condition that Shoal does not have.
CONDITIONAL = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "Kafka names it once a metrics reporter takes telemetry",
    ApiKey.PUSH_TELEMETRY: "Kafka names it once a metrics reporter takes telemetry",
}
_DIRECTORIES = "A Shoal broker has one log directory."
_REGISTRATIONS = "Shoal's controllers do not register: each supports what its broker supports."
#: APIs that Kafka serves and Shoal does not, with the reason.
NOT_SERVED = {
    ApiKey.ALTER_REPLICA_LOG_DIRS: _DIRECTORIES,
    ApiKey.CONTROLLER_REGISTRATION: _REGISTRATIONS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _DIRECTORIES,
}
#: The first version of an API that Shoal does not serve, with the reason.
OTHER_VERSIONS: dict[tuple[ApiKey, int], str] = {}
#: Features whose levels differ, with the reason.
OTHER_LEVELS = {
    "kraft.version": "Voters of Shoal's quorum always change as at level 1.",
    SECURITY_FEATURE: "It is Shoal's own ([security.md](security.md)).",
}
_INTRODUCTION = f"""\
# Compatibility with Apache Kafka {KAFKA_VERSION}

Use this page if you want to know whether a client or a tool of yours works with Shoal. Clients ask
a broker for its APIs by ApiVersions, and choose versions that both sides support. The page compares
the answers of Shoal and of Apache Kafka {KAFKA_VERSION}, on listeners of brokers, which clients
use, and on listeners of controllers (`controller.listener.names`). It is generated from the table
of handlers that ApiVersions uses, so it cannot differ from the broker.

`make compat` tests real clients against a real broker: librdkafka (confluent-kafka and kcat),
kafka-python, aiokafka, the Java clients, Kafka Streams and Kafka's command-line tools. At night,
the Java clients 3.3, 3.9, 4.3 and 4.4 produce, consume, run transactions and administrate; 3.3 is
the oldest that Kafka 4 serves.

You can run Kafka Streams with both of its protocols, `classic` (the default) and `streams`
(KIP-1071), with `at_least_once` and `exactly_once_v2`. As in Kafka {KAFKA_VERSION}, streams groups
support no regular expressions for source topics, and their topology never changes. Clients of Kafka
4.4 know warm-up tasks, but no broker assigns any yet, neither Kafka {KAFKA_VERSION} nor Shoal. The
assignor is `sticky`. In Kafka you can add your own (KIP-1357), but a class in Java cannot run in a
broker in Python, so Shoal refuses other values of `group.streams.assignors`. [Kafka
Streams](streams.md) runs an example with both protocols.
"""


def get_name(key: ApiKey) -> str:
    """Return an API's name in Kafka's schemas."""
    return "".join(word.capitalize() for word in key.name.split("_"))


def _format_limits() -> str:
    """Return the rows of APIs with a lower limit on entries, the largest first."""
    by_limit: dict[int, list[str]] = {}
    for key in HANDLERS:
        if (limit := find_max_entries(key)) != ENTRIES_MAX:
            by_limit.setdefault(limit, []).append(get_name(ApiKey(key)))
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

If a batch cannot be decompressed, Kafka answers `UNKNOWN_SERVER_ERROR`, but Shoal `INVALID_RECORD`,
and for an unknown codec `UNSUPPORTED_COMPRESSION_TYPE`. Shoal gives you an error message in cases
where Kafka gives none. An answer lists at most {RECORD_ERRORS_MAX:,} records.

## Large requests

A request may contain {ENTRIES_MAX:,} entries in all its arrays together, such as topics and
partitions, and {BODY_SIZE_MAX >> 20} MiB without records. Kafka limits the bytes, by
`socket.request.max.bytes`, and each array, to 1,000,000 entries. Both close the connection if a
struct or a header has more than {TAGS_MAX:,} tagged fields. For some APIs the limit is lower:

| APIs | entries |
| --- | --- |
{_format_limits()}

If your client sends a larger request, the broker closes the connection and logs a line. So that
other clients do not wait, a broker handles {PIECE_ENTRIES} entries of a request at a time, and
fewer if names are long. Therefore, CreateTopics of more than
{PIECE_ENTRIES_OF[ApiKey.CREATE_TOPICS]} topics consists of several changes of the metadata, and if
two of the topics share a name, the first one may be created. More than {TOPICS_MAX:,} topics get
`POLICY_VIOLATION`; in Kafka more than 5,000 of one partition do.

A short request may ask for much: for all offsets of a group, or all producers of a partition. A
broker works on a few such entries at a time, and answers those that are equal once. Kafka repeats
the answer, but its clients never ask for the same twice in one request. A group with more than
{TOMBSTONES_MAX:,} offsets is deleted in several writes, and other requests for it wait until its
end. If the coordinator moves meanwhile, a part of the offsets is left: delete the group again.

## Batches behind a refused one

An idempotent producer sends up to five batches without waiting. If a broker refuses one with
`NOT_LEADER_OR_FOLLOWER`, `NOT_ENOUGH_REPLICAS` or another error after which the producer sends it
again, Shoal answers those behind it with the same error, because they must not overtake it. Kafka
answers them with `OUT_OF_ORDER_SEQUENCE_NUMBER` if the reason has gone by then, and librdkafka may
write records twice after that ([ADR 136](adr/0136-refuse-the-batches-behind-a-refused-one.md)).

After a change of leader, the first batch that breaks a producer's sequence gets
`NOT_LEADER_OR_FOLLOWER` once, because the batches before it may still be on their way from the
former leader ([ADR 139](adr/0139-send-back-a-batch-that-overtook-another.md)).

## Transactions

The coordinator answers each transaction request in each state like Kafka {KAFKA_VERSION}, even
while markers are being written (`tests/compat/oracles/test_transaction_states.py` compares both).
There is one exception, which follows a later change (KAFKA-20785): a producer that commits after
the coordinator has aborted its transaction, because `transaction.timeout.ms` has passed, gets
`PRODUCER_FENCED`. Kafka {KAFKA_VERSION} answers `INVALID_TXN_STATE`, which ends a thread of Kafka
Streams.

## Dead letters of share groups

A dead letter has the key, the value, the partition and the headers `__dlq.errors.*` of Kafka's
(KIP-1191; `tests/compat/oracles/test_dead_letters.py` compares both). Shoal adds
`__dlq.errors.timestamp`, `.member` and `.client.id`. If the record is copied, its own headers are
before them and its timestamp stays; Kafka copies only the key and the value. Shoal's header
`__dlq.errors.disposition` comes from the draft KIP-1317, and Kafka 4.4.0 writes none.

A group's letters cannot go into the topic that its records come from. Kafka permits that.

If the topic for dead letters is missing, or does not allow them, Kafka gives the letter up and logs
an error. Shoal keeps the record, and writes the letter as soon as it can. Therefore the metric
`DeadLetterQueueFailedProduceRequestsPerSec` counts each failed attempt; Kafka's counts only letters
that it gives up. The names of these metrics are equal.

## Topics that are created when they are first used

If a client asks for the metadata of a topic that does not exist, and `auto.create.topics.enable` is
`true`, Kafka begins to create the topic and answers `UNKNOWN_TOPIC_OR_PARTITION` once. Shoal
answers when the topic exists, with its partitions, so that your client does not need to ask again.

## Descriptions of Kafka Streams topologies

Kafka hands the descriptions that members of streams groups send to a plugin
(`group.streams.topology.description.plugin.class`, KIP-1331), and has none of its own. Shoal has no
such plugins. It answers as Kafka does without one: heartbeats ask for no description,
StreamsGroupTopologyDescriptionUpdate gets `UNSUPPORTED_VERSION`, and
`kafka-streams-groups.sh --describe --topology` has none to show.

## Issuers and audiences of bearer tokens

Since Kafka 4.4 a broker with `sasl.oauthbearer.jwks.endpoint.url` starts only with an expected
issuer and audience, unless `sasl.oauthbearer.allow.unverified.issuer` and `.audience` are `true`.
Shoal starts without them. It then takes tokens of any issuer whose keys are at the URL, and refuses
a token that names an audience, unless `.audience` is `true`. So set both expectations.

## Strings that are not UTF-8, and unknown tags

Shoal reads such strings as Kafka does, with U+FFFD for each invalid sequence, and ignores tagged
fields that it does not know. But if the arrays of a request contain more than 10,000 entries, it
may have neither, because reading them would keep other clients waiting: the broker closes the
connection.

## Limit on records in flight

Kafka exceeds `share.partition.max.record.locks` by up to a batch, in both acquire modes. Shoal
never does, because it delivers a larger batch in parts. If you lower the limit, Shoal delivers even
released records only within it, but Kafka does not limit those.

## Minimum of in-sync replicas of internal topics

`transaction.state.log.min.isr`, `share.coordinator.state.topic.min.isr` and
`rlmm.config.remote.log.metadata.topic.min.isr` count up to one less than the replicas, and at
least 1, so that the loss of one broker stops no coordinator. Kafka takes the values as they are.

## Security on listeners of controllers

Kafka lists DescribeUserScramCredentials and DescribeDelegationToken on listeners of controllers. It
does not answer the first, and answers the second with `UNKNOWN_SERVER_ERROR`. Shoal answers both.

A client that may not describe users, and asks for all of them, gets no answer from Kafka on any
listener. Shoal answers `CLUSTER_AUTHORIZATION_FAILED`.

## Sessions of removed users

If you remove a SCRAM credential, Kafka only refuses new logins. Shoal closes the connections of the
user as well, unless `shoal.sasl.scram.disconnect.removed.users` is `false`.

## Requests that only Shoal refuses

* CreateDelegationToken for an owner of another type than `User` gets `INVALID_PRINCIPAL_TYPE`. In
  Kafka, a client with `CREATE_TOKENS` on others may become a principal of any type.
* If a client sets `errors.deadletterqueue.topic.name` of a group, it needs `WRITE` on the topic,
  because the brokers write the records there that the group's members reject. If a record itself
  brings headers `__dlq.errors.*`, they are not copied to the dead-letter topic.
* A member of a share group, and its share session, belong to the principal that joined. Another
  principal gets the answer that the member (`UNKNOWN_MEMBER_ID`) or the session
  (`SHARE_SESSION_NOT_FOUND`) does not exist.
* ElectLeaders holds an unclean election only for topics whose `unclean.leader.election.enable` is
  `true`; others get `ELIGIBLE_LEADERS_NOT_AVAILABLE`, because the election may lose records. Kafka
  holds it for any topic.
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
        "The fetch of a broker without a replica. Both permit it.",
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

_SUITES = """\
## Tests that other projects have of their clients

Each night, tests that come with other clients run against Shoal, built from pinned packages:

| client | tests | left out |
|---|---|---|"""
#: The suites: client, tests, and what is left out.
_SUITE_ROWS = (
    (
        "franz-go 1.22.3",
        "groups of each kind and transactions, on three brokers",
        "the other tests of the client",
    ),
    (
        "sarama 1.61.1",
        "its functional tests, on three brokers behind a proxy that fails and is slow",
        "three that stop brokers by `docker compose`, one that wants five brokers, and one that"
        " runs Java in a container",
    ),
    (
        "confluent-kafka-go 2.11.1",
        "its integration tests, with classic groups and with those of KIP-848, and the test of"
        " offsets in transactions",
        "`TestTransactionalProducer`: its `Flush(-1)` does not wait for answers of the broker",
    ),
    ("Kombu 5.7", "those of transports, by `shoal://`", "none"),
    (
        "Celery 5.7",
        "66 smoke tests: workers that are killed, restarted and stopped, canvases, time limits and"
        " revokes",
        "[the others](celery.md#which-of-their-own-tests-pass)",
    ),
)

_NOT_NIGHTLY = """\

Kafka Connect runs each night as well: workers of 4.4.0, one of which is killed, copy a file into a
topic exactly once and from there into a file. MirrorMaker copies topics of Kafka into Shoal as
[migration.md](migration.md) shows. It also copies in a ring, from Shoal to Shoal, to Kafka and
back: records, configs, permissions, positions of groups, checkpoints and heartbeats. The connectors
are those of 4.3.1, because the tests found no newer ones in Maven Central.

These ran by hand on 2026-11-30, from the sources in Rust's crates. No night has them, because they
need a Rust toolchain, and those of rust-rdkafka a broker on port 9092:

| client | passed | failed | skipped |
|---|---:|---:|---:|
| rust-rdkafka 0.39.0, integration tests, on one broker | 44 | 0 | 0 |
| librdkafka 2.12.1, its suite in quick mode, classic groups, three brokers | 133 | 7 | 23 |

Of librdkafka's seven, five start Kafka's own scripts (0052, 0077, 0109, 0115, 0119), and one
creates a topic with `segment.bytes=20000`, which is below the minimum of Kafka 4 (0129). One needs
an authorizer, and with one it sets a config of Kerberos, which Shoal does not have (0081). Those
that were skipped need TLS or logins, which that build and those brokers lacked, the other group
protocol, RapidJSON, or more time.

Other tests are left out for a reason:

* The packages of confluent-kafka 2.16.1 (Python) and @confluentinc/kafka-javascript 1.10.1 contain
  no tests of their own that use a broker.
* Kafka's own tests of Connect and MirrorMaker start Kafka's brokers in their own process, or in
  containers.
* One test of kafka-go 0.4.51, `TestReaderConsumerGroup/consumer_group_rebalance`, fails on Kafka
  4.4.0 as well. Two readers expect 12 records each of 24 in three partitions, so the reader of one
  partition gets 8, unless a late rebalance lets it read some again."""

_ANSWERS = """\
## Answers to clients with few permissions

Shoal and Kafka give the same answers to clients with the same permissions, in each version of the
APIs for clients. The nightly permission matrix compares them. The exceptions are:

| API | Kafka | Shoal | reason |
|---|---|---|---|"""


_EXTENSIONS = """\
## Shoal's extensions of requests

Shoal's brokers and Shoal's client extend some requests by tagged fields with tags from 1000 on, so
your other clients do not notice them. A broker lists each extension as a feature in ApiVersions to
Shoal's client only, and the client uses only listed ones. If your cluster lacks one, `shoal`
reports it. An extension needs the same permissions as its request.

| feature | request | what it adds |
|---|---|---|"""
_ADDED = {
    features.HEADERS_ONLY_FEATURE: ("ShareFetch", "acquires records without sending them"),
    features.RELEASE_DELAY_FEATURE: (
        "ShareFetch, ShareAcknowledge",
        "a release may carry a delay",
    ),
    features.FAILURE_REASON_FEATURE: (
        "ShareFetch, ShareAcknowledge",
        "a release or rejection may say why, in at most"
        f" {reasons.REASON_BYTES_MAX:,} bytes ([queues.md](queues.md#why-a-record-failed))",
    ),
    features.HELD_KEYS_FEATURE: (
        "AlterShareGroupOffsets",
        "releases keys that dead-lettered records hold (`shoal dlq skip`)",
    ),
    features.CANCEL_FEATURE: (
        "AlterShareGroupOffsets",
        f"cancels records, at most {features.CANCELLED_MAX:,} offsets a request"
        " ([queues.md](queues.md#cancel-jobs))",
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
        "waits until the records below a transaction's first ones are finished "
        "([cooperative.md](cooperative.md#outputs-in-the-partitions-order))",
    ),
}


def build_page(rows: Iterable[Api] = tuple(HANDLERS.values())) -> str:
    """Return the whole page."""
    served = {
        ApiKey(row["api_key"]): (row["min_version"], row["max_version"])
        for row in api_versions.list_api_versions(rows)
    }
    on = {row.key: row.on for row in rows}
    lines = [
        _INTRODUCTION,
        "## APIs served\n",
        "| key | API | Shoal | Kafka | listeners | |",
        "|---:|---|---|---|---|---|",
    ]
    lines += [
        f"| {key.value} | {get_name(key)} | {_format_span(span)} |"
        f" {_format_span(_KAFKA_ALL.get(key))} | {_format_listeners(on[key])} |"
        f" {_find_remark(key, span, on[key])} |"
        for key, span in served.items()
    ]
    lines += [
        "",
        "## APIs of Kafka that are not served\n",
        "ApiVersions does not list them, so clients report an unsupported API without a request."
        " If a client\nsends one anyway, the broker closes the connection. Kafka does the same for"
        " an API that it does not\nhave, or that it does not support on the listener.\n",
        "| key | API | Kafka | listeners | reason |",
        "|---:|---|---|---|---|",
    ]
    lines += [
        f"| {key.value} | {get_name(key)} | {_format_span(span)} |"
        f" {_format_listeners(find_kafka_listeners(key))} | {NOT_SERVED[key]} |"
        for key, span in sorted(_KAFKA_ALL.items())
        if key not in served
    ]
    lines += ["", _RECORDS, _SUITES]
    lines += [f"| {' | '.join(row)} |" for row in _SUITE_ROWS]
    lines += [_NOT_NIGHTLY]
    lines += ["", _ANSWERS]
    lines += [
        f"| {get_name(key)} | {_format_answer(kafka)} | {_format_answer(shoal)} | {reason} |"
        for key, kafka, shoal, reason in ANSWERS
    ]
    lines.append("")
    lines += ["## Features\n", "| feature | Shoal | Kafka | |", "|---|---|---|---|"]
    lines += [
        f"| {feature} | {_format_span(SUPPORTED_FEATURES.get(feature))} | {_format_span(span)} |"
        f" {OTHER_LEVELS.get(feature, '')} |"
        for feature, span in {**KAFKA_FEATURES, SECURITY_FEATURE: None}.items()
    ]
    lines += ["", _EXTENSIONS]
    lines += [f"| `{name}` | {' | '.join(_ADDED[name])} |" for name in features.FEATURES]
    return "\n".join(lines) + "\n"


def _format_answer(answer: str) -> str:
    return _SHOWN.get(answer) or f"`{answer.upper()}`"


def find_kafka_listeners(key: ApiKey) -> Listeners:
    """Return the listeners on which Kafka lists an API."""
    listeners = Listeners(0)
    if key in KAFKA:
        listeners |= Listeners.BROKER
    if key in KAFKA_CONTROLLERS:
        listeners |= Listeners.CONTROLLER
    return listeners


def _format_listeners(on: Listeners) -> str:
    return ", ".join(str(kind.name).lower() for kind in on)


def _format_span(span: tuple[int, int] | None) -> str:
    if span is None:
        return "-"
    return f"{span[0]}-{span[1]}" if span[0] < span[1] else str(span[0])


def _find_remark(key: ApiKey, span: tuple[int, int], on: Listeners) -> str:
    if key not in _KAFKA_ALL:
        return CONDITIONAL[key]
    if _KAFKA_ALL[key] == span and find_kafka_listeners(key) == on:
        return ""
    return OTHER_VERSIONS[key, span[1] + 1]


if __name__ == "__main__":
    print(build_page(), end="")

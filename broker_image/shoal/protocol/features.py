"""Names of extensions that Shoal's brokers and Shoal's client have beyond Kafka.

A broker lists these features in ApiVersions to Shoal's client only. The client uses only listed
features. So other clients and brokers never encounter them.
"""

#: Client software name of Shoal's client.
OWN_CLIENT = "shoal"
#: ShareFetch accepts `HEADERS_ONLY` in its acquire mode. The response then has the 61-byte headers
#: of the acquired batches, concatenated, instead of the batches.
HEADERS_ONLY_FEATURE = "shoal.share.headers.only"
HEADERS_ONLY = 0x10
#: Releases may have a delay. A broker without the feature would release at once.
RELEASE_DELAY_FEATURE = "shoal.share.release.delay"
#: Releases and rejections may have a reason (`protocol.reasons`). A broker without the feature
#: would ignore it.
FAILURE_REASON_FEATURE = "shoal.share.failure.reason"
#: AlterShareGroupOffsets releases keys that dead-lettered records hold. A broker without the
#: feature would reset offsets.
HELD_KEYS_FEATURE = "shoal.share.held.keys"
#: AlterShareGroupOffsets cancels records in the partitions that the broker leads. A broker without
#: the feature would reset offsets.
CANCEL_FEATURE = "shoal.share.cancel"
#: OffsetCommit, TxnOffsetCommit and OffsetFetch have key ranges with finished offsets. A broker
#: without the feature would commit only the position.
INDIVIDUAL_COMMIT_FEATURE = "shoal.group.individual.commit"
#: DescribeShareGroupOffsets lists records in flight in the partitions that the broker leads. A
#: broker without the feature would only describe offsets.
IN_FLIGHT_FEATURE = "shoal.share.in.flight"
#: Fetch has key ranges: the response leaves out records of other ranges, and has the offset from
#: which to read on. The versions of the feature are those of the hash (`record.key_hash`).
KEY_RANGES_FEATURE = "shoal.fetch.key.ranges"
#: ConsumerGroupHeartbeat assigns key ranges, and OffsetCommit and OffsetFetch have a position for
#: each of them. The versions of the feature are those of the hash.
GROUP_KEY_RANGES_FEATURE = "shoal.group.key.ranges"
#: TxnOffsetCommit waits until the records below the transaction's first ones are finished. A broker
#: without the feature would commit at once.
COMMIT_ORDER_FEATURE = "shoal.group.commit.order"
#: The version of the hash of keys.
KEY_HASH_VERSION = 1
#: The highest hash of a key. A whole partition is the key range 0 to this hash.
KEY_HASH_MAX = 2**63 - 1
#: Maximum number of key ranges of a partition in a Fetch request.
KEY_RANGES_MAX = 1_000
#: Offsets that one request may cancel, in all its partitions: some milliseconds of work.
CANCELLED_MAX = 1_000
#: All features.
FEATURES = (
    HEADERS_ONLY_FEATURE,
    RELEASE_DELAY_FEATURE,
    FAILURE_REASON_FEATURE,
    HELD_KEYS_FEATURE,
    CANCEL_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
    IN_FLIGHT_FEATURE,
    KEY_RANGES_FEATURE,
    GROUP_KEY_RANGES_FEATURE,
    COMMIT_ORDER_FEATURE,
)

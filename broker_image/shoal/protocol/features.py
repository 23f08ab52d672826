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
#: AlterShareGroupOffsets releases keys that dead-lettered records hold. A broker without the
#: feature would reset offsets.
HELD_KEYS_FEATURE = "shoal.share.held.keys"
#: OffsetCommit, TxnOffsetCommit and OffsetFetch have key ranges with finished offsets. A broker
#: without the feature would commit only the position.
INDIVIDUAL_COMMIT_FEATURE = "shoal.group.individual.commit"
#: DescribeShareGroupOffsets lists records in flight in the partitions that the broker leads. A
#: broker without the feature would only describe offsets.
IN_FLIGHT_FEATURE = "shoal.share.in.flight"
#: All features.
FEATURES = (
    HEADERS_ONLY_FEATURE,
    RELEASE_DELAY_FEATURE,
    HELD_KEYS_FEATURE,
    INDIVIDUAL_COMMIT_FEATURE,
    IN_FLIGHT_FEATURE,
)

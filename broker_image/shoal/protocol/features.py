"""What our brokers and our client have between them beyond Kafka, by name.

A broker names these features in ApiVersions to our own client alone, and the client asks for none
that it was not told of: other clients and brokers never meet them.
"""

#: How our client calls itself.
OWN_CLIENT = "shoal"
#: ShareFetch takes `HEADERS_ONLY` in its acquire mode, and answers with the 61-byte headers of the
#: acquired batches, one behind the other, in place of the batches: offsets without payload.
HEADERS_ONLY_FEATURE = "shoal.share.headers.only"
HEADERS_ONLY = 0x10
#: Releases may say how long they wait; a broker without it would release at once.
RELEASE_DELAY_FEATURE = "shoal.share.release.delay"
#: AlterShareGroupOffsets frees keys that dead-lettered records hold; a broker without it would take
#: the request for a reset.
HELD_KEYS_FEATURE = "shoal.share.held.keys"
#: All of them.
FEATURES = (HEADERS_ONLY_FEATURE, RELEASE_DELAY_FEATURE, HELD_KEYS_FEATURE)

"""One partition's log: segment files in Kafka's format, their indexes, recovery and cleaning.

All disk access goes through `shoal.log.storage`. Times are arguments (`now_ms`).
"""

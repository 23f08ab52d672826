"""One partition's log: segment files in Kafka's format, their indexes, recovery and cleaning.

All disk goes through `shoal.log.storage`, all time comes in as `now_ms`.
"""

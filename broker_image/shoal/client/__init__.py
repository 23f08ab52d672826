"""A small asyncio client of the Kafka protocol, built on the project's own codec.

`client.Client` is the entry point (`client.SyncClient` for programs without an event loop).
`cluster` finds brokers, leaders and coordinators. `admin`, `share`, `fetcher`, `producer` and
`consumer` do the work. The command line, the operator and the Spark source use this client. It
works against Apache Kafka and against Shoal, and imports nothing of the broker.
"""

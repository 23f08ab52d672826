"""A small asyncio client of the Kafka protocol, on the project's own codec.

`client.Client` is the door (`client.SyncClient` for programs without an event loop); `cluster`
finds brokers, leaders and coordinators; `admin`, `share`, `fetcher`, `producer` and `consumer` do
the work. It serves the command line, the operator and the Spark source, and works against Apache
Kafka as well as against Shoal. Nothing here knows a broker's inside.
"""

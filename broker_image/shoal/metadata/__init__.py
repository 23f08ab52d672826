"""The cluster's metadata: topics, brokers, configs and features, and the decisions that change
them.

`controller` makes decisions as records, and `records` encodes them. `image` is the immutable state
after the records. `delta` makes the next image and reports the changes. `configs` defines every
config. `server.cluster.metadata_log` keeps the records.
"""

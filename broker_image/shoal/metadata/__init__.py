"""The cluster's metadata: what topics, brokers, configs and features there are, and who may say so.

`controller` decides, in records; `records` are their bytes; `image` is the state after them, an
immutable value; `delta` makes the next image and tells what changed. `configs` knows every config.
The log that keeps the records is `server.metadata_log`'s.
"""

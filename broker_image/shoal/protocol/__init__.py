"""The Kafka protocol: frames, the API table, codecs and error codes, without I/O."""

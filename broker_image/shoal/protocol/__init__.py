"""The Kafka wire: frames, the API table, codecs and error codes. Nothing here knows a socket."""

"""The Kafka protocol: frames, the API table, codecs and error codes, without I/O."""

from shoal.protocol.hidden_modules import hide_modules

# Whatever needs kio imports this package first.
with hide_modules("hypothesis"):
    import kio.static.primitive as _primitive  # noqa: F401

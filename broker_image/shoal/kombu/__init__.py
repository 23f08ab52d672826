"""A Kombu transport: Celery on share groups, as `Celery(broker="shoal://host:9092")`.

Kombu knows its transports by a table, and importing this package adds `shoal` to it. Celery does so
by itself: the distribution names `SERIALIZER` as an entry point of `kombu.serializers`, because
Kombu loads those entry points before it connects and has none for transports (ADR 154). A program
that uses Kombu without Celery writes `import shoal.kombu`. The transport itself (`transport`) is
imported with the first connection.
"""

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["shoal"] = "shoal.kombu.transport:Transport"
#: Encoder, decoder, content type and encoding of a serializer that nothing uses.
SERIALIZER = (None, None, "application/x-shoal", "binary")

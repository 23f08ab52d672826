"""Messages of Kombu as records.

The value is the body as Kombu's serializer made it, so every Kafka client can read it. A header
`kombu` has the rest as JSON. A due time and a priority become the headers that brokers read.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps, loads

if TYPE_CHECKING:
    from shoal.record.records import Record

KOMBU = "kombu"
CONTENT_TYPE = "content-type"
#: The header of the time from which on a record is delivered, in epoch milliseconds.
DELIVER_AT = "shoal.deliver.at"
#: The header of a priority: the group config `share.priority.header` names it.
PRIORITY = "priority"
PRIORITY_MAX = 9


def encode(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of `Channel.prepare_message` as arguments of `Producer.send`."""
    body = message["body"]
    rest = {name: message[name] for name in message if name != "body"}
    headers = [(KOMBU, dumps(rest).encode())]
    if content_type := message.get(CONTENT_TYPE):
        headers.append((CONTENT_TYPE, content_type.encode()))
    if (due_ms := _find_due_ms(message.get("headers") or {})) is not None:
        headers.append((DELIVER_AT, str(due_ms).encode()))
    if priority := get_priority(message):
        headers.append((PRIORITY, str(priority).encode()))
    return {
        "value": body.encode() if isinstance(body, str) else body,
        "headers": tuple(headers),
    }


def decode(record: Record, queue: str, tag: str) -> dict[str, Any]:
    """Return a record as Kombu's raw message. A record of another producer is a message whose
    content type is in its header `content-type`, or else bytes."""
    headers = dict(record.headers)
    if described := headers.get(KOMBU):
        message: dict[str, Any] = loads(described)
    else:
        content_type = (headers.get(CONTENT_TYPE) or b"application/data").decode()
        coding = "binary" if content_type == "application/data" else "utf-8"
        plain = {name: (text or b"").decode(errors="replace") for name, text in headers.items()}
        message = {"content-type": content_type, "content-encoding": coding, "headers": plain}
    message["body"] = record.value or b""
    properties = message.setdefault("properties", {})
    properties.update(delivery_tag=tag, body_encoding=None)
    info = {"exchange": "", "routing_key": queue} | (properties.get("delivery_info") or {})
    properties["delivery_info"] = info
    return message


def is_expired(record: Record, message: dict[str, Any], now_ms: int) -> bool:
    """Whether a message has outlived the `expiration` that its publisher gave it."""
    expiration = message["properties"].get("expiration")
    try:
        return expiration is not None and now_ms - record.timestamp_ms >= int(expiration)
    except ValueError:
        return False


def get_priority(message: dict[str, Any]) -> int:
    """Return the priority of a message, from 0 to 9. 9 comes first."""
    try:
        priority = int((message.get("properties") or {}).get("priority") or 0)
    except (TypeError, ValueError):
        return 0
    return max(0, min(priority, PRIORITY_MAX))


def _find_due_ms(headers: dict[str, Any]) -> int | None:
    """Return Celery's `eta` in epoch milliseconds. Without a zone it is in UTC."""
    eta = headers.get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None  # The worker says what is wrong with it.
    if not isinstance(eta, datetime):
        return None
    due = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
    return int(due.timestamp() * 1000)

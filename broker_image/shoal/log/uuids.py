"""Ids as Kafka writes them in files and on the command line: base64 for URLs, without padding."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID


def format_uuid(value: UUID) -> str:
    """Return the 22 characters of an id."""
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID | None:
    """Parse an id in Kafka's form or with dashes; None for other text."""
    try:
        if len(text) == 36:
            return UUID(text)
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (ValueError, binascii.Error):
        return None

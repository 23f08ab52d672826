"""What the console shows of records: decoded by the schema registry, then masked by rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.console.masks import NO_MASKS, Masks

if TYPE_CHECKING:
    from shoal.console.registries import Registry
    from shoal.record.records import Record


@dataclass(frozen=True, slots=True)
class View:
    """The masks and the schema registry of one console."""

    masks: Masks = NO_MASKS
    registry: Registry | None = None

    async def shown(self, topic: str, record: Record) -> Record:
        """Return a record with what may be shown of it."""
        if self.registry is not None:
            record = await self.registry.decoded(record)
        return self.masks.shown(topic, record)

    async def key(self, topic: str, key: bytes | None) -> bytes | None:
        """Return what may be shown of a key in a topic."""
        if self.registry is not None:
            key = await self.registry.decoded_payload(key)
        return self.masks.key(topic, key)


PLAIN = View()

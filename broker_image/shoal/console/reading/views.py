"""What the console shows of records: decoded by the schema registry, then masked by rule."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.console.reading.masks import NO_MASKS, Masks

if TYPE_CHECKING:
    from shoal.console.reading.registries import Registry
    from shoal.record.records import Record


@dataclass(frozen=True, slots=True)
class RecordView:
    """The masks and the schema registry of one console."""

    masks: Masks = NO_MASKS
    registry: Registry | None = None

    async def prepare_record(self, topic: str, record: Record) -> Record:
        """Return a record with what may be shown of it. Decoding and masking one may take long, so
        others have a turn before."""
        await asyncio.sleep(0)
        if self.registry is not None:
            record = await self.registry.decode_record(record)
        return self.masks.mask_record(topic, record)

    async def prepare_key(self, topic: str, key: bytes | None) -> bytes | None:
        """Return what may be shown of a key in a topic."""
        if self.registry is not None:
            key = await self.registry.decode_payload(key)
        return self.masks.mask_key(topic, key)


PLAIN = RecordView()

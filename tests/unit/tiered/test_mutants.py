"""Crashes at every step find code that is wrong in these ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal.server.tiered import rebuild
from shoal.server.tiered.copier import Copier
from shoal.server.tiered.manifests import Manifests
from shoal.server.tiered.reconciliation import Reconciliation
from shoal.tiered import keys
from shoal.tiered.audit import ObjectAudit
from sim.seeds import keep_by_day
from support.storage.tiered_world import crash_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

WRITE = Manifests.write


def finishes_a_copy_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    async def write(self: Any, partition: Any, prefix: str, remote: Any, added: Any = None) -> None:
        if added is None:
            await WRITE(self, partition, prefix, remote)

    patch.setattr(Manifests, "write", write)


def deletes_objects_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: Any, partition: Any, prefix: str, segments: Any) -> None:
        await self._begin_deletion(partition.topic, partition.key, segments)
        await self._delete_objects(partition.topic, partition.key, prefix, segments)

    patch.setattr(Copier, "delete", delete)


def deletes_objects_before_the_metadata(patch: pytest.MonkeyPatch) -> None:
    begin = Copier._begin_deletion  # noqa: SLF001

    async def late(self: Any, topic: str, key: Any, segments: Any) -> None:
        await self._store.delete([k async for k in keys_of(self, segments)])
        await begin(self, topic, key, segments)

    async def keys_of(self: Any, segments: Any) -> Any:
        ids = {segment.segment_id for segment in segments}
        async for info in self._store.list_objects("cluster"):
            if keys.parse_segment_id(info.key) in ids:
                yield info.key

    patch.setattr(Copier, "_begin_deletion", late)


def does_not_write_lost_metadata_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebuild, "find_unfinished", lambda segments, remote: [])
    patch.setattr(Reconciliation, "_claim_objects", nothing)


async def nothing(*_: object) -> None:
    """Do nothing."""


def keeps_orphans(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ObjectAudit, "find_due", lambda self, now_ms, grace_ms: [])


def never_writes_the_manifest(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Manifests, "write", nothing)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    finishes_a_copy_before_the_manifest,
    deletes_objects_before_the_manifest,
    deletes_objects_before_the_metadata,
    does_not_write_lost_metadata_again,
    keeps_orphans,
    never_writes_the_manifest,
)


@pytest.mark.parametrize(
    "mutant",
    keep_by_day(MUTANTS, {"finishes_a_copy_before_the_manifest", "never_writes_the_manifest"}),
    ids=lambda mutant: mutant.__name__,
)
def test_a_mutant_is_caught(mutant, monkeypatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        assert crash_everywhere(lost=False) + crash_everywhere(lost=True)

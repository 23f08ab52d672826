"""The manifests of the partitions that this broker leads: how they are claimed and written.

A leader claims the manifest once in each of its epochs: it reads it, and writes it again with its
own epoch. From then on a conditional put of an earlier leader fails, and that leader stops. Each
later write replaces the version that this broker wrote last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.tiered import keys, manifest
from shoal.tiered.manifest import Manifest
from shoal.tiered.remote_log import pack
from shoal.tiered.segment_object import DamagedObject
from shoal.tiered.store import BytesSource, ObjectMissing, StoreConflict

if TYPE_CHECKING:
    from uuid import UUID

    from shoal.replication.partition import Partition
    from shoal.server.node import Node
    from shoal.tiered.remote_log import RemoteLog, RemoteSegment
    from shoal.tiered.store import ObjectStore, ObjectVersion

#: Writes of one manifest before the pass gives up. Another one is needed if an earlier leader, or
#: this broker before its restart, wrote in between.
_WRITES_MAX = 3


class LostLeadership(Exception):
    """Another broker leads the partition. It continues."""


class _ManifestClaim:
    """The manifest of one partition in one epoch of this broker."""

    __slots__ = ("cleaned_to", "in_doubt", "leader_epoch", "revision", "version", "written")

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        #: The version in the store, None without a manifest.
        self.version: ObjectVersion | None = None
        self.revision = 0
        self.cleaned_to = 0
        #: What was written last: fingerprint of the segments, log start, and `get_cleaned_to`.
        self.written: tuple[int, int, int] | None = None
        #: Whether a put has not ended, or ended with an error and may have taken effect.
        self.in_doubt = False


class Manifests:
    """Owns the claims of this broker."""

    def __init__(self, node: Node, store: ObjectStore, cluster_id: str) -> None:
        self._node = node
        self._store = store
        self._cluster_id = cluster_id
        self._claims: dict[tuple[UUID, int], _ManifestClaim] = {}
        self.writes_total = 0

    def is_claimed(self, partition: Partition, leader_epoch: int) -> bool:
        claim = self._claims.get(partition.key)
        return claim is not None and claim.leader_epoch == leader_epoch

    async def read(self, prefix: str, leader_epoch: int) -> tuple[Manifest, ObjectVersion] | None:
        """Return the manifest below a prefix, None if there is none. Raises `LostLeadership` if a
        leader of a later epoch has written it, `StoreError`, `DamagedObject`."""
        try:
            data, version = await self._store.get_versioned(keys.format_manifest_key(prefix))
        except ObjectMissing:
            return None
        try:
            stored = manifest.decode(data)
        except DamagedObject as error:
            raise DamagedObject(
                f"{keys.format_manifest_key(prefix)}: {error}. Delete this object: the leader of "
                "the partition then writes another one"
            ) from None
        if stored.leader_epoch > leader_epoch:
            raise LostLeadership(
                f"{keys.format_manifest_key(prefix)} was written in leader epoch "
                f"{stored.leader_epoch}, "
                f"and this broker leads in epoch {leader_epoch}"
            )
        return stored, version

    def claim(
        self, partition: Partition, leader_epoch: int, stored: tuple[Manifest, ObjectVersion] | None
    ) -> None:
        """Begin to write the manifest that `read` returned."""
        claim = self._claims[partition.key] = _ManifestClaim(leader_epoch)
        if stored is not None:
            claim.version, claim.revision = stored[1], stored[0].revision
            claim.cleaned_to = stored[0].cleaned_to

    def get_cleaned_to(self, key: tuple[UUID, int]) -> int:
        """Return the offset up to which the keys of a compacted topic were cleaned in the remote
        segments. Raises `LostLeadership`."""
        return self._get_claim(key).cleaned_to

    def set_cleaned_to(self, key: tuple[UUID, int], offset: int) -> None:
        """Note the end of a cleaning, for the next write. Raises `LostLeadership`."""
        self._get_claim(key).cleaned_to = offset

    def forget(self, key: tuple[UUID, int]) -> None:
        """Forget a partition that this broker no longer leads, or has no more."""
        self._claims.pop(key, None)

    def _get_claim(self, key: tuple[UUID, int]) -> _ManifestClaim:
        """Raises `LostLeadership` if the partition was forgotten meanwhile."""
        claim = self._claims.get(key)
        if claim is None:
            raise LostLeadership("the partition is no longer tiered, or no longer here")
        return claim

    def is_current(self, partition: Partition, fingerprint: int) -> bool:
        """Whether the last write of this epoch has these segments and the log start. A partition
        without segments needs no manifest."""
        claim = self._get_claim(partition.key)
        if claim.in_doubt:
            return False
        if claim.written is None:
            return claim.version is None and not fingerprint
        return claim.written == (fingerprint, partition.log.log_start_offset, claim.cleaned_to)

    async def write(
        self,
        partition: Partition,
        prefix: str,
        remote: RemoteLog,
        added: RemoteSegment | None = None,
    ) -> None:
        """Replace the manifest by one with the finished segments of `remote`, and with one whose
        copy is about to finish. Raises `LostLeadership`, `StoreError`, `DamagedObject`."""
        claim = self._get_claim(partition.key)
        packed, fingerprint = remote.pack_finished(), remote.fingerprint
        if added is not None:
            packed += pack(added)
            fingerprint ^= added.segment_id.int
        draft = self._make_manifest(partition, claim, packed)
        claim.in_doubt = True
        for _ in range(_WRITES_MAX):
            if partition.has_lost_leadership_since(claim.leader_epoch):
                raise LostLeadership("another broker leads the partition")
            draft = draft._replace(revision=claim.revision + 1)
            source = BytesSource(manifest.encode(draft))
            try:
                claim.version = await self._store.put_if(
                    keys.format_manifest_key(prefix), source, claim.version
                )
            except StoreConflict as error:
                conflict = error
                if not await self._read_again(partition.key, prefix, draft.write_id):
                    continue
            claim.revision = draft.revision
            claim.written = (fingerprint, draft.log_start_offset, draft.cleaned_to)
            claim.in_doubt = False
            self.writes_total += 1
            return
        raise conflict

    async def _read_again(self, key: tuple[UUID, int], prefix: str, write_id: UUID) -> bool:
        """Take over the version that was in the way of a write. Return whether it is that write: a
        put that was repeated may have taken effect the first time."""
        claim = self._get_claim(key)
        stored = await self.read(prefix, claim.leader_epoch)
        if stored is None:
            if claim.version is not None:
                # The topic was deleted, or was not tiered for a while.
                self.forget(key)
                raise LostLeadership(f"{keys.format_manifest_key(prefix)} was deleted")
            return False
        claim.version, claim.revision = stored[1], stored[0].revision
        return stored[0].write_id == write_id

    def _make_manifest(
        self, partition: Partition, claim: _ManifestClaim, packed: bytes
    ) -> Manifest:
        node = self._node
        return Manifest(
            self._cluster_id,
            partition.topic,
            partition.topic_id,
            partition.index,
            claim.leader_epoch,
            node.id,
            node.make_random_id(),
            claim.revision,
            node.clock.now_ms(),
            partition.log.log_start_offset,
            packed,
            claim.cleaned_to,
        )

    async def delete(self, prefix: str, key: tuple[UUID, int]) -> None:
        """Delete the manifest of a partition whose topic is deleted."""
        self.forget(key)
        await self._store.delete([keys.format_manifest_key(prefix)])

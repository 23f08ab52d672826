"""What every object store must do: libraries, real servers, and the simulated store of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from shoal.tiered.store import (
    ByteRange,
    BytesSource,
    ObjectMissing,
    StoreConflict,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from shoal.tiered.store import ObjectStore


async def keys(store: ObjectStore, prefix: str) -> list[str]:
    return sorted([info.key async for info in store.list_objects(prefix)])


async def objects(store: ObjectStore) -> None:
    """Objects are written whole, replaced, listed, read by ranges and deleted."""
    await store.put("c/a/1", BytesSource(b"one", memoryview(b" two")))
    await store.put("c/a/2", BytesSource(b"x" * (20 << 20)))
    await store.put("c/ab/1", BytesSource(b"other"))
    assert await store.get("c/a/1") == b"one two"
    assert await store.get_size("c/a/2") == 20 << 20
    assert await store.get_ranges("c/a/1", [ByteRange(0, 3), ByteRange(4, 7)]) == [b"one", b"two"]
    assert await keys(store, "c/a") == ["c/a/1", "c/a/2"]
    sizes = {info.key: info.size async for info in store.list_objects("c")}
    assert sizes == {"c/a/1": 7, "c/a/2": 20 << 20, "c/ab/1": 5}
    await store.put("c/a/1", BytesSource(b"replaced"))
    assert await store.get("c/a/1") == b"replaced"
    await store.put("c/empty", BytesSource())
    assert await store.get("c/empty") == b""
    await store.delete(["c/missing", "c/a/1", "c/also-missing", "c/a/2"])
    assert await keys(store, "c") == ["c/ab/1", "c/empty"]
    assert await keys(store, "nothing") == []


async def conditional_puts(store: ObjectStore) -> None:
    """A conditional put replaces the version that was read, and no other one."""
    first = await store.put_if("c/m", BytesSource(b"1"), None)
    assert await store.get_versioned("c/m") == (b"1", first)
    with pytest.raises(StoreConflict, match="c/m"):
        await store.put_if("c/m", BytesSource(b"x"), None)
    second = await store.put_if("c/m", BytesSource(b"22"), first)
    with pytest.raises(StoreConflict, match="c/m"):
        await store.put_if("c/m", BytesSource(b"x"), first)
    await store.put("c/m", BytesSource(b"333"))
    with pytest.raises(StoreConflict, match="c/m"):
        await store.put_if("c/m", BytesSource(b"x"), second)
    data, version = await store.get_versioned("c/m")
    assert data == b"333"
    await store.delete(["c/m"])
    with pytest.raises(StoreConflict, match="c/m"):
        await store.put_if("c/m", BytesSource(b"x"), version)
    with pytest.raises(ObjectMissing):
        await store.get_versioned("c/m")
    await store.put_if("c/m", BytesSource(b"4"), None)
    assert await store.get("c/m") == b"4"


async def children(store: ObjectStore) -> None:
    """Children are the next part of the keys."""
    for key in ("c/a/0/1", "c/a/1/1", "c/b/0/1", "c/file", "ca/x/1"):
        await store.put(key, BytesSource(b"x"))
    assert sorted(await store.list_children("c")) == ["c/a", "c/b"]
    assert sorted(await store.list_children("c/a")) == ["c/a/0", "c/a/1"]
    assert await store.list_children("none") == []
    assert {"c", "ca"} <= set(await store.list_children(""))


async def errors(store: ObjectStore) -> None:
    """A missing object and a short range are errors."""
    await store.put("k", BytesSource(b"12345"))
    for call in (store.get("no"), store.get_size("no"), store.get_ranges("no", [ByteRange(0, 1)])):
        with pytest.raises(ObjectMissing, match="no"):
            await call
    with pytest.raises(StoreUnavailable, match="k"):
        await store.get_ranges("k", [ByteRange(0, 2), ByteRange(3, 9)])


CONTRACT = (objects, conditional_puts, children, errors)

"""The objects of `shoal up` on a disk that is full: they stay in memory until there is space."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from shoal_operator.local import api as local_api
from shoal_operator.local.api import LocalApi
from support.brokers.local_up import PLAIN, make_manifest

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_objects_are_written_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event tells of it, also if many files cannot be written."""
    api = LocalApi(tmp_path / "objects")
    cluster = make_manifest("QueueCluster", "main", storage={"size": "1Gi"}, listeners=[PLAIN])
    api.write(("QueueCluster", "default", "main"), cluster)
    keys = [("QueueTopic", "default", name) for name in ("jobs", "more")]

    def refuse(_path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(local_api, "write_text", refuse)
        for key in keys:
            api.write(key, make_manifest("QueueTopic", key[2], cluster="main", partitions=1))
    assert all(key in api.objects for key in keys)
    assert api.unsaved >= set(keys)
    assert not list((tmp_path / "objects").glob("queuetopics/*/*.yaml"))
    (event,) = api.iterate("Event")
    assert (event["reason"], event["count"]) == ("DiskNotWritable", 1)
    assert "cannot be written: No space left on device. Free space" in event["message"]
    api.save_again()
    assert not api.unsaved
    again = LocalApi(tmp_path / "objects")
    assert all(key in again.objects for key in keys)

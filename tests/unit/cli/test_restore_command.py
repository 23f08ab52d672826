"""`shoal storage restore` refuses brokers that contradict the role of the node in its file, and
backups in the clear where there are keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer
from shoal.cli.commands import storage_restore
from shoal.metadata.records import MetadataRecord, encode
from shoal.tiered import backup

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("roles", "brokers", "error"),
    [
        ("controller", None, "Node 3 is a controller (process.roles): name the --brokers."),
        ("controller", "1,3", "Node 3 is a controller (process.roles): take it out of --brokers."),
        ("broker", "1,2", "Node 3 is a broker (process.roles), and --brokers lacks it: add it."),
        ("broker", "1,x", "--brokers '1,x' is not a list of ids, such as 1,2,3."),
        # The next error is that of the store.
        ("controller", "1,2", "nowhere://store"),
        ("broker", None, "nowhere://store"),
        ("broker,controller", "1,3", "nowhere://store"),
        (None, "1,2", "nowhere://store"),
    ],
)
def test_the_brokers_agree_with_the_role(
    roles: str | None,
    brokers: str | None,
    error: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("obstore")
    file, data_dir, summary = (tmp_path / name for name in ("node", "data", "summary"))
    settings = {"node.id": "3", "shoal.cluster.id": "c", "process.roles": roles or ""}
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items() if value))
    with pytest.raises(typer.Exit):
        storage_restore.restore(
            data_dir=str(data_dir),
            url="nowhere://store",
            node_id=3 if roles is None else None,
            brokers=brokers,
            config=None if roles is None else file,
            summary=str(summary),
        )
    assert error in capsys.readouterr().err
    assert not data_dir.exists()


def test_a_backup_in_the_clear_needs_consent_where_there_are_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore")
    store, data_dir, keys = (tmp_path / name for name in ("store", "data", "keys"))
    feature = {"name": "metadata.version", "feature_level": 30}
    body = b"".join(
        backup.build_batches([(None, encode(MetadataRecord("FeatureLevelRecord", feature)))])
    )
    path = store / backup.format_metadata_key("c")
    path.parent.mkdir(parents=True)
    path.write_bytes(backup.encode({"offset": 1, "written_ms": 1, "cluster_id": "c"}, body))
    keys.mkdir()

    def restore(*, clear_backup: bool) -> None:
        storage_restore.restore(
            data_dir=str(data_dir),
            url=f"file://{store}",
            key_directory=str(keys),
            cluster_id="c",
            node_id=1,
            idle="0s",
            clear_backup=clear_backup,
        )

    with pytest.raises(typer.Exit):
        restore(clear_backup=False)
    assert "c/backup/metadata is not encrypted" in capsys.readouterr().err
    assert not data_dir.exists()
    restore(clear_backup=True)
    assert data_dir.exists()

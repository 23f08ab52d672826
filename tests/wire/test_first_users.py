"""`shoal server --add-scram` creates the first users of a new cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shoal.log.storage import DiskStorage
from shoal.metadata.scram_arguments import parse
from shoal.protocol.api import ApiKey
from shoal.server.cluster import first_users
from support.brokers.commands import Shoal
from support.brokers.servers import ShoalProcess
from support.brokers.wireclient import WireClient

PASSWORD = "hunter2-of-this-test"
USER = f"SCRAM-SHA-512=[name=admin,password={PASSWORD},iterations=5000]"
ADMIN = [("admin", [(2, 5000)])]


def users(bootstrap: str) -> list[tuple[str, list[tuple[int, int]]]]:
    """Return the users, with the number and the iterations of each mechanism."""
    with WireClient(bootstrap) as client:
        found = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": None})
    return [
        (row.user, [(info.mechanism, info.iterations) for info in row.credential_infos])
        for row in found.results
    ]


def dump(path: Path, *flags: str) -> str:
    """Return what `shoal dump` prints."""
    done = Shoal("").run("dump", *flags, str(path))
    return done.stdout


@pytest.mark.parametrize("way", ["flag", "file", "variable"])
def test_a_first_user(tmp_path: Path, way: str) -> None:
    """Its password is neither in the process list, nor in the environment, nor in the log."""
    file = tmp_path / "users"
    file.write_text(f"{USER}\nSCRAM-SHA-256=[name=second,password={PASSWORD}]\n")
    broker = ShoalProcess(
        tmp_path / "data",
        flags={
            "flag": ("--add-scram", USER),
            "file": (f"--add-scram=@{file}",),
            "variable": (),
        }[way],
        environment={"SHOAL_ADD_SCRAM": USER} if way == "variable" else {},
    ).start()
    second = [("second", [(1, 4096)])] if way == "file" else []
    assert users(broker.bootstrap) == ADMIN + second
    assert not (tmp_path / "data" / "bootstrap.checkpoint").exists()
    for name in ("cmdline", "environ"):
        assert PASSWORD not in Path(f"/proc/{broker.pid}/{name}").read_bytes().decode()
    assert broker.stop() == 0
    assert PASSWORD not in "\n".join(broker.log)
    if way != "flag":
        return
    refusal = broker.refusal()
    assert "has the data of an existing one" in refusal
    assert PASSWORD not in refusal
    broker.flags, broker.environment = (), {}
    broker.start()
    assert users(broker.bootstrap) == ADMIN + second
    assert broker.stop() == 0


def test_a_dump_masks_the_credential(tmp_path: Path) -> None:
    broker = ShoalProcess(tmp_path / "data", flags=("--add-scram", USER)).start()
    broker.kill9()
    records = [parse(USER, os.urandom)]
    first_users.write(DiskStorage(), str(tmp_path / "new"), records, now_ms=1)
    directory = tmp_path / "data" / "__cluster_metadata-0"
    rows = [json.loads(line) for line in dump(directory).splitlines()]
    (row,) = [row for row in rows if row.get("type") == "UserScramCredentialRecord"]
    assert row["value"] == {
        "name": "admin",
        "mechanism": 2,
        "salt": "[hidden]",
        "stored_key": "[hidden]",
        "server_key": "[hidden]",
        "iterations": 5000,
    }
    raw = [json.loads(line) for line in dump(directory, "--as=raw").splitlines()]
    assert [r["value"] for r in raw if r["offset"] == row["offset"]] == ["[hidden]"]
    (first,) = dump(tmp_path / "new" / "bootstrap.checkpoint", "--as=metadata").splitlines()
    assert json.loads(first)["value"] == row["value"]


def test_users_wait_for_a_start_that_succeeds(tmp_path: Path) -> None:
    """A directory that has the users only is not formatted, and the flag is not needed again."""
    records = [parse(USER, os.urandom)]
    first_users.write(DiskStorage(), str(tmp_path / "data"), records, now_ms=1)
    broker = ShoalProcess(tmp_path / "data").start()
    assert users(broker.bootstrap) == ADMIN
    assert broker.stop() == 0


def test_a_mistake_is_named_before_anything_is_written(tmp_path: Path) -> None:
    text = f"SCRAM-SHA-1=[name=a,password={PASSWORD}]"
    broker = ShoalProcess(tmp_path / "data", flags=("--add-scram", text))
    refusal = broker.refusal()
    assert "SCRAM-SHA-256 or SCRAM-SHA-512" in refusal
    assert PASSWORD not in refusal
    assert not (tmp_path / "data").exists()

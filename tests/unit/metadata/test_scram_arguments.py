"""The users of `shoal server --add-scram`, and where they wait for the cluster's start."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from shoal.cli.commands.add_scram import AddScramError, collect_users, remove_users
from shoal.log.errors import CorruptLog
from shoal.log.memory import MemoryStorage
from shoal.metadata.scram_arguments import InvalidScramArgument, parse
from shoal.metadata.scram_credentials import build_scram_record
from shoal.security import scram
from shoal.security.scram import SCRAM_MECHANISMS
from shoal.server.cluster import first_users

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.metadata.records import MetadataRecord

SALT = bytes(range(24))


def read(text: str) -> MetadataRecord:
    return parse(text, lambda size: SALT[:size])


@pytest.mark.parametrize("name", sorted(SCRAM_MECHANISMS))
def test_a_password(name: str) -> None:
    mechanism = SCRAM_MECHANISMS[name]
    credential = scram.build_credential(mechanism, "p", SALT, 4096)
    assert read(f"{name}=[name=alice,password=p]") == build_scram_record(
        "alice", mechanism.number, credential
    )


@pytest.mark.parametrize(
    ("text", "user", "password", "iterations"),
    [
        ('SCRAM-SHA-256=[name="a,b",password="p,q=r"]', "a,b", "p,q=r", 4096),
        ("SCRAM-SHA-256=[password=p=q=, name=a]", "a", "p=q=", 4096),
        ("SCRAM-SHA-256=[name=a,password=[x],iterations=16384]", "a", "[x]", 16384),
        ('SCRAM-SHA-256=[name=a,password="]', "a", '"', 4096),
        ("SCRAM-SHA-256=[name=ä,password=ß x ]", "ä", "ß x ", 4096),
        ('  SCRAM-SHA-256=[name=a,password="p"]\n', "a", "p", 4096),
    ],
)
def test_values(text: str, user: str, password: str, iterations: int) -> None:
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
    credential = scram.build_credential(mechanism, password, SALT, iterations)
    assert read(text) == build_scram_record(user, mechanism.number, credential)


def test_a_salted_password() -> None:
    salt, salted = base64.b64encode(b"salt").decode(), base64.b64encode(b"x" * 32).decode()
    text = f"SCRAM-SHA-256=[name=a,salt={salt},saltedpassword={salted},iterations=5000]"
    mechanism = SCRAM_MECHANISMS["SCRAM-SHA-256"]
    credential = scram.from_salted_password(mechanism, b"x" * 32, b"salt", 5000)
    assert read(text) == build_scram_record("a", mechanism.number, credential)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "form"),
        ("hunter2", "form"),
        ("SCRAM-SHA-256=name=a,password=hunter2", "form"),
        ("SCRAM-SHA-1=[name=a,password=hunter2]", "SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("SCRAM-SHA-256=[password=hunter2]", "no name"),
        ("SCRAM-SHA-256=[name=,password=hunter2]", "no name"),
        ("SCRAM-SHA-256=[name=a]", "Give the password"),
        ("SCRAM-SHA-256=[name=a,password=]", "empty"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=aHVudGVyMg==]", "and salt"),
        ("SCRAM-SHA-256=[name=a,password=x,hunter2]", "double quotes"),
        ("SCRAM-SHA-256=[name=a,passwort=hunter2]", "no passwort="),
        ("SCRAM-SHA-256=[name=a,password=hunter2,password=hunter2]", "twice"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=4095]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=16385]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=x]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,salt=hunter2]", "base64"),
        ("SCRAM-SHA-256=[name=a,salt=AAAA,saltedpassword=hunter2]", "base64"),
        ("SCRAM-SHA-256=[name=a,salt=AAAA,saltedpassword=]", "base64"),
    ],
)
def test_mistakes_are_named_without_the_password(text: str, part: str) -> None:
    with pytest.raises(InvalidScramArgument, match=part) as error:
        read(text)
    assert "hunter2" not in str(error.value)


def test_users_come_from_flags_files_and_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text("one\n\n two\n")
    assert collect_users(["a", f"@{file}"], {"SHOAL_ADD_SCRAM": "b\nc"}) == [
        "a",
        "one",
        " two",
        "b",
        "c",
    ]
    assert collect_users([], {"SHOAL_ADD_SCRAM": f"@{file}"}) == ["one", " two"]
    assert collect_users([], {}) == []
    with pytest.raises(AddScramError, match="No such file"):
        collect_users([f"@{tmp_path}/none"], {})


def test_the_flag_leaves_the_command_line() -> None:
    words = ["python", "-m", "shoal.cli", "server", "--add-scram", "x", "--set", "a=b"]
    assert remove_users([*words, "--add-scram=y"]) == [*words[:4], "--set", "a=b"]


def test_the_file_of_the_first_users() -> None:
    storage = MemoryStorage()
    records = [read("SCRAM-SHA-256=[name=a,password=p]"), read("SCRAM-SHA-512=[name=b,password=p]")]
    assert first_users.read(storage, "d") == []
    first_users.write(storage, "d", records, now_ms=1)
    assert first_users.read(storage, "d") == records
    data = bytearray(storage.read_file("d/bootstrap.checkpoint"))
    for broken in (b"", data[:40], data[:-1], data[:80] + bytes([data[80] ^ 1]) + data[81:]):
        storage.replace_file("d/bootstrap.checkpoint", broken, sync=True)
        with pytest.raises(CorruptLog, match="cannot be read"):
            first_users.read(storage, "d")

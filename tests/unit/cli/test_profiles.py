"""`shoal profile`: the file, its protection, and which cluster a command uses."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from shoal.cli import profiles
from shoal.cli.client_properties import ClusterOptions, load_client_settings
from shoal.cli.failures import CommandError
from shoal.cli.profiles import Profiles
from support.brokers.commands import call

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "pl4nted-s3cret"
SASL = (
    "bootstrap.servers=prod:9092\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
    f"sasl.username=ann\nsasl.password={SECRET}\n"
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without profiles, and without variables that name a cluster."""
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def shoal(*words: str, status: int = 0, stdin: str = "", **variables: str) -> str:
    """Return all that a command prints."""
    done = call(*words, stdin=stdin, environment=os.environ | variables)
    assert done.returncode == status, done
    assert SECRET not in done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_profile_from_its_creation_to_its_end() -> None:
    assert "Create one with `shoal profile create NAME`" in shoal("profile", "list")
    said = shoal("profile", "create", "prod", "--from", "-", stdin=SASL)
    assert said == "Created profile prod. Commands use it.\n"
    shoal("profile", "create", "dev", "-b", "dev:9092", "-X", "client.id=me")
    rows = json.loads(shoal("profile", "list", "-o", "json"))
    assert [(r["profile"], r["in_use"], r["bootstrap_servers"], r["user"]) for r in rows] == [
        ("dev", False, "dev:9092", None),
        ("prod", True, "prod:9092", "ann"),
    ]
    assert "sasl.password       (hidden)" in shoal("profile", "show")
    assert SECRET in profiles.get_path().read_text()
    assert shoal("profile", "use", "dev") == "Commands use profile dev (dev:9092).\n"
    (shown,) = json.loads(shoal("profile", "show", "-o", "json"))
    assert shown["properties"] == {"bootstrap.servers": "dev:9092", "client.id": "me"}
    assert shoal("profile", "delete", "dev") == "Deleted profile dev.\n"
    assert "no profile is in use" in shoal("profile", "show", status=1)
    assert "there is no profile 'dev'" in shoal("profile", "use", "dev", status=2)


def test_only_the_owner_may_read_the_file() -> None:
    umask = os.umask(0)
    try:
        shoal("profile", "create", "prod", "--from", "-", stdin=SASL)
    finally:
        os.umask(umask)
    file = profiles.get_path()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert os.listdir(file.parent) == [file.name], "no other file with secrets is left"
    file.chmod(0o640)
    said = shoal("profile", "list", status=2)
    assert said == (
        f"shoal: others may read {file}, which may have secrets. Run `chmod 600 {file}`.\n"
    )


def test_what_is_refused_changes_nothing(home: Path) -> None:
    shoal("profile", "create", "prod", "-b", "prod:1")
    before = profiles.get_path().read_bytes()
    refused = [
        (("create", "prod", "-b", "x:1"), 1, "profile prod exists. Add --replace"),
        (("create", "a/b", "-b", "x:1"), 2, "is not a name for a profile"),
        (("create", "new"), 2, "needs the address of a cluster"),
        (("create", "new", "-b", "x:y"), 2, "is not HOST:PORT"),
        (("create", "new", "-b", "x:1", "-X", "no.such=1"), 2, "does not support property"),
        (("create", "new", "-b", "x:1", "-X", f"sasl.password={SECRET}"), 2, "would show a secret"),
        (("create", "new", "--from", str(home / "none")), 2, "cannot read"),
        (("show", "new"), 2, "there is no profile 'new'"),
        (("delete", "new"), 2, "there is no profile 'new'"),
    ]
    for words, status, said in refused:
        assert said in shoal("profile", *words, status=status)
    assert profiles.get_path().read_bytes() == before
    assert "Created" in shoal("profile", "create", "prod", "-b", "x:1", "--replace")


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"version": 2}', '{"version": 1, "profiles": {"a": 1}, "current": null}']
)
def test_a_damaged_file(text: str) -> None:
    profiles.get_path().parent.mkdir(parents=True)
    profiles.get_path().write_text(text)
    profiles.get_path().chmod(0o600)
    said = shoal("topics", "list", status=2)
    assert str(profiles.get_path()) in said


def test_paths_become_absolute_and_references_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    text = "ssl.ca.location=ca.pem\nsasl.password=${env:PASSWORD}\n"
    (home / "ca.pem").touch()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required username="ann" password="{SECRET}";'
    shoal("profile", "create", "a", "-b", "a:1", "--from", "-", stdin=text, PASSWORD="p")
    shoal("profile", "create", "b", "-b", "b:1", "--from", "-", stdin=f"sasl.jaas.config={jaas}")
    found = profiles.hide_secrets(profiles.load()["a"])
    assert found["ssl.ca.location"] == str(home / "ca.pem")
    assert found["sasl.password"] == "${env:PASSWORD}"
    assert profiles.hide_secrets(profiles.load()["b"])["sasl.jaas.config"] == profiles.HIDDEN


BOOTSTRAP, CONFIG, PROFILE = "bootstrap_server", "command_config", "profile"


@pytest.mark.parametrize(
    ("flags", "variables", "address"),
    [
        ({}, {}, "current"),
        ({PROFILE: "other"}, {}, "other"),
        ({}, {PROFILE: "other"}, "other"),
        ({PROFILE: "other"}, {PROFILE: "current"}, "other"),
        ({BOOTSTRAP: "flag:1"}, {}, "flag"),
        ({}, {BOOTSTRAP: "variable:1"}, "variable"),
        ({}, {CONFIG: "FILE"}, "file"),
        ({CONFIG: "FILE"}, {PROFILE: "other"}, "file"),
        ({CONFIG: "FILE"}, {PROFILE: "other", BOOTSTRAP: "variable:1"}, "variable"),
        ({PROFILE: "other"}, {BOOTSTRAP: "variable:1", CONFIG: "FILE"}, "other"),
        ({PROFILE: "other", BOOTSTRAP: "flag:1"}, {}, "flag"),
        ({BOOTSTRAP: "flag:1"}, {PROFILE: "other"}, "flag"),
        ({PROFILE: "other", CONFIG: "FILE"}, {}, "--profile and --command-config"),
        ({}, {PROFILE: "other", BOOTSTRAP: "variable:1"}, "SHOAL_PROFILE and SHOAL_BOOTSTRAP"),
        ({}, {PROFILE: "other", CONFIG: "FILE"}, "SHOAL_PROFILE and SHOAL_COMMAND_CONFIG"),
        ({PROFILE: "none"}, {}, "there is no profile 'none'"),
    ],
)
def test_which_cluster_a_command_uses(
    home: Path, flags: dict[str, str], variables: dict[str, str], address: str
) -> None:
    known = {name: {"bootstrap.servers": f"{name}:1"} for name in ("current", "other")}
    profiles.save(Profiles(known, "current"))
    file = home / "client.properties"
    file.write_text("bootstrap.servers=file:1\n")
    given = {**variables, **flags}
    named = ClusterOptions(
        given.get(BOOTSTRAP), file if CONFIG in given else None, given.get(PROFILE)
    )

    def found() -> str:
        applies = named.drop_variables(variables.keys() - flags.keys())
        return load_client_settings(applies, None).bootstrap[0][0]

    if " " in address:
        with pytest.raises((ValueError, CommandError), match=address):
            found()
    else:
        assert found() == address


def test_a_command_distinguishes_flags_from_variables() -> None:
    for name, port in (("a", 1), ("b", 2)):
        shoal("profile", "create", name, "-b", f"127.0.0.1:{port}")
    other = {"SHOAL_BOOTSTRAP_SERVERS": "127.0.0.1:3"}
    for words, variables, port in (
        ((), {}, 1),
        (("--profile", "b"), other, 2),
        ((), {"SHOAL_PROFILE": "b"}, 2),
        ((), other, 3),
    ):
        said = shoal("topics", "list", *words, status=3, **variables)
        assert f"no broker at 127.0.0.1:{port}:" in said
    said = shoal("topics", "list", status=2, SHOAL_PROFILE="b", **other)
    assert "SHOAL_PROFILE and SHOAL_BOOTSTRAP_SERVERS name two clusters" in said


def test_a_variable_and_a_flag_override_a_property_of_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"bootstrap.servers": "a:1", "client.id": "profile", "request.timeout.ms": "5"}
    profiles.save(Profiles({"a": names}, "a"))
    assert load_client_settings(ClusterOptions(), None).client_id == "profile"
    monkeypatch.setenv("SHOAL_CLIENT_CLIENT_ID", "variable")
    assert load_client_settings(ClusterOptions(), None).client_id == "variable"
    found = load_client_settings(ClusterOptions(profile="a"), ["client.id=flag"])
    assert (found.client_id, found.request_timeout_ms) == ("flag", 5)
    with pytest.raises(CommandError, match="there is no profile 'b'"):
        load_client_settings(ClusterOptions(profile="b"), None)


def test_without_profiles_commands_use_this_machine() -> None:
    assert load_client_settings(ClusterOptions(), None).bootstrap == (("127.0.0.1", 9092),)
    assert not profiles.get_path().exists()

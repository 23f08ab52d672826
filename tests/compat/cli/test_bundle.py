"""`shoal debug bundle`: what is in it, of a secured Shoal and a secured Apache Kafka, and that
planted secrets are not."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers.commands import Shoal
from support.brokers.ports import free_ports
from support.security.secured_clusters import PASSWORDS, Secured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.servers import ShoalProcess

PLANTED = {
    use: f"pl4nted-{use}-5ecret"
    for use in ("profile", "key", "value", "log", "bearer", "variable", "scram")
}


def unpacked(file: Path) -> dict[str, str]:
    """Return the texts of a bundle by name, without its root."""
    with tarfile.open(file) as archive:
        found = {}
        for entry in archive:
            content = archive.extractfile(entry)
            assert content is not None
            found[entry.name.partition("/")[2]] = content.read().decode()
    return found


def parsed(texts: dict[str, str], name: str) -> Any:
    return json.loads(texts[name])


@pytest.fixture
def commands(tmp_path: Path) -> Callable[[str], Shoal]:
    """Return commands of a user whose home has no profiles."""

    def make(bootstrap: str) -> Shoal:
        found = Shoal(bootstrap)
        found.environment["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        return found

    return make


def test_planted_secrets_are_nowhere(
    commands: Callable[[str], Shoal], secured: Secured, tmp_path: Path
) -> None:
    """In the broker's configs, as the command's login, in a profile, in records, and in a log."""
    shoal = commands("")
    del shoal.environment["SHOAL_BOOTSTRAP_SERVERS"]
    file = tmp_path / "admin.properties"
    properties = secured.properties("BOTH", "PLAIN", "admin")
    properties["bootstrap.servers"] = secured.addresses["BOTH"]
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    lines = f"security.protocol=SASL_SSL\nsasl.username=u\nsasl.password={PLANTED['profile']}\n"
    shoal.run("profile", "create", "other", "-b", "other:1", "--from", "-", stdin=lines)
    shoal.environment["SHOAL_COMMAND_CONFIG"] = str(file)
    topic = "kafkas" if secured.is_kafka else "shoals"
    shoal.run("topics", "create", topic, "-p", "1", "-c", "retention.ms=77777")
    record = f"{PLANTED['key']}:{PLANTED['value']}\n"
    shoal.run("produce", topic, "-K", ":", stdin=record)
    take = ("share-consume", topic, "-g", "workers", "--from-beginning", "-n", "1")
    shoal.run(*take, "-a", "release")
    words = ("users", "add", "planted", "--password-file", "-")
    shoal.run(*words, stdin=PLANTED["scram"])
    log = tmp_path / "server.log"
    log.write_text(
        f"started\nsasl.password={PLANTED['log']}\n"
        f"request with Authorization: Bearer {PLANTED['bearer']}\n"
        f"a client sent {PASSWORDS['admin']} as its name, another {PLANTED['profile']}\nended\n"
    )
    archive = tmp_path / "bundle.tar.gz"
    said = shoal.run("debug", "bundle", str(archive), "--logs", str(log))
    assert said.stdout.startswith(f"Wrote {archive} with ")
    assert archive.stat().st_mode & 0o777 == 0o600
    assert sorted(one.name for one in tmp_path.glob("*bundle*")) == ["bundle.tar.gz"]
    texts = unpacked(archive)
    everything = "\n".join([*texts.values(), *texts, said.stdout, said.stderr])
    for secret in (*PLANTED.values(), *PASSWORDS.values()):
        assert secret not in everything, [name for name, text in texts.items() if secret in text]
    assert texts["logs/0/server.log"].splitlines()[0] == "started"
    assert texts["logs/0/server.log"].splitlines()[-1] == "ended"
    configs = parsed(texts, "configs/brokers.json")["1"]
    hidden = {name for name, value in configs.items() if value == "(hidden)"}
    assert any(name.endswith("sasl.jaas.config") for name in hidden), configs
    assert parsed(texts, "configs/topics.json")[topic]["retention.ms"] == "77777"
    assert parsed(texts, "cluster.json")["controller"] == 1
    assert topic in {row["topic"] for row in parsed(texts, "topics.json")}
    (group,) = [row for row in parsed(texts, "groups.json") if row["group"] == "workers"]
    assert (group["type"], group["positions"][0]["lag"]) == ("Share", 1)
    state = parsed(texts, "share_state.json")["workers"][f"{topic}-0"]
    if secured.is_kafka:
        assert "does not list records in flight" in state["error"]
    else:
        assert state["records_by_state"] == {"available": 1}
        assert state["records_by_delivery_count"] == {"1": 1}
    for name in ("health", "quorum", "log_dirs", "reassignments", "transactions", "versions"):
        assert f"{name}.json" in texts
    assert "errors.json" not in texts, texts.get("errors.json")


def test_metrics_are_in_it(
    commands: Callable[[str], Shoal], start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    shoal = commands(start_broker(metrics=f"127.0.0.1:{port}").bootstrap)
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log").write_text("one\ntwo\nthree\n")
    (folder / "b.txt").write_text("no log\n")
    archive = tmp_path / "x.tar.gz"
    shoal.run("debug", "bundle", str(archive), "--logs", str(folder), "--log-bytes", "8")
    texts = unpacked(archive)
    assert "# TYPE" in texts[f"metrics/127.0.0.1-{port}.txt"]
    assert texts["logs/0/a.log"] == "three\n", "whole lines of the end"
    assert not [name for name in texts if name.endswith("b.txt")]
    before = archive.read_bytes()
    assert "exists. Name a new file" in shoal.refusal("debug", "bundle", str(archive), status=2)
    assert archive.read_bytes() == before
    words = ("debug", "bundle", str(tmp_path / "y.tar.gz"), "--logs", str(tmp_path / "none"))
    assert "neither a log file nor a folder" in shoal.refusal(*words, status=2)
    assert not (tmp_path / "y.tar.gz").exists()
    said = shoal.refusal("debug", "bundle", str(tmp_path / "none" / "y.tar.gz"), status=2)
    assert "cannot write" in said


def test_without_a_cluster_the_bundle_has_what_is_here(
    commands: Callable[[str], Shoal], tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    shoal = commands(f"127.0.0.1:{port}")
    (tmp_path / "a.log").write_text("crashed\n")
    archive = tmp_path / "x.tar.gz"
    words = ("debug", "bundle", str(archive), "--logs", str(tmp_path))
    assert "the cluster did not answer" in shoal.refusal(*words, status=3)
    texts = unpacked(archive)
    assert texts["logs/0/a.log"] == "crashed\n"
    assert "no broker at" in parsed(texts, "errors.json")["cluster.json"]
    assert parsed(texts, "versions.json")["shoal"]

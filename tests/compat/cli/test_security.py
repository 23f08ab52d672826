"""The commands for users, access control entries, tokens and identities, against Apache Kafka."""

from __future__ import annotations

import itertools
import json
import os
import stat
from typing import TYPE_CHECKING

import pytest
from shoal.client.client import SyncClient
from shoal.client.settings import Settings
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers import forks
from support.brokers.commands import Shoal
from support.runs.conditions import eventually
from support.security.secured_clusters import PASSWORDS, Secured, pem_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.brokers.shared_servers import SharedKafka

_numbers = itertools.count()


@pytest.fixture
def shoal_as(secured: Secured, tmp_path: Path) -> Callable[..., Shoal]:
    """Return commands of a user, whose properties are in a file."""

    def make(user: str = "admin", mechanism: str = "PLAIN", listener: str = "BOTH") -> Shoal:
        file = tmp_path / f"{user}-{mechanism}.properties"
        properties = secured.properties(listener, mechanism, user)
        properties["bootstrap.servers"] = secured.addresses[listener]
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        found = Shoal("")
        del found.environment["SHOAL_BOOTSTRAP_SERVERS"]
        found.environment["SHOAL_COMMAND_CONFIG"] = str(file)
        return found

    return make


def test_records_in_flight_are_listed_to_users_who_may_describe_group_and_topic(
    shoal_as: Callable[..., Shoal], secured: Secured
) -> None:
    admin, ann, topic = shoal_as(), shoal_as("ann"), new("listed")
    if secured.is_kafka:
        assert "this cluster is Apache Kafka" in ann.refusal("share", "inspect", "g", topic)
        return
    group = new("lister")
    admin.run("topics", "create", topic, "-p", "1")
    admin.run("produce", topic, stdin="one\n")
    admin.run("share-consume", topic, "-g", group, "--from-beginning", "-n", "1", "-a", "release")
    words = ("share", "inspect", group, topic, "--state", "available")
    assert "GROUP_AUTHORIZATION_FAILED" in ann.refusal(*words)
    admin.run("acls", "add", "-p", "ann", "--operation", "describe", "-g", group)
    eventually(lambda: "TOPIC_AUTHORIZATION_FAILED" in ann.refusal(*words))
    # The command stops at Metadata. The broker checks its own request as well.
    properties = secured.properties("BOTH", "PLAIN", "ann")
    with SyncClient(Settings.from_bootstrap(secured.addresses["BOTH"], properties)) as client:
        part = {"topic_name": topic, "partitions": [0], "in_flight_from": [0]}
        body = {"groups": [{"group_id": group, "topics": [part]}]}
        asked = client.cluster.request(1, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, body)
        (found,) = client.run(asked).groups[0].topics[0].partitions
    assert found.error_code == ErrorCode.topic_authorization_failed
    assert not getattr(found, "in_flight", ())
    admin.run("acls", "add", "-p", "ann", "--operation", "describe", "-t", topic)
    assert eventually(lambda: ann.run(*words, "-o", "json", status=0).stdout.count('"offset"')) == 1


def new(kind: str) -> str:
    return f"{kind}-{next(_numbers)}"


def entries(shoal: Shoal, *words: str) -> set[tuple[str, ...]]:
    """Return principal, permission, operation, type, resource, pattern and host of entries."""
    return {tuple(row.values()) for row in shoal.json("acls", "list", *words)}


def test_entries_are_added_listed_and_removed(shoal_as: Callable[..., Shoal]) -> None:
    shoal, user = shoal_as(), new("user")
    who = f"User:{user}"
    said = shoal.says(
        "acls", "add", "-p", user, "--operation", "read", "--operation", "ALTER", "-t", "jobs"
    )
    assert said.splitlines() == [
        f"Added: allow read on topic jobs for {who}.",
        f"Added: allow alter on topic jobs for {who}.",
    ]
    deny = ("--deny", "--operation", "all", "--host", "10.0.0.1", "--prefixed")
    shoal.run("acls", "add", "-p", who, *deny, "-t", "job", "-g", "job")
    shoal.run("acls", "add", "-p", who, "--operation", "describe-configs", "--cluster")
    literal = {
        (who, "allow", "read", "topic", "jobs", "literal", "*"),
        (who, "allow", "alter", "topic", "jobs", "literal", "*"),
    }
    denied = (who, "deny", "all", "topic", "job", "prefixed", "10.0.0.1")
    others = {
        (who, "deny", "all", "group", "job", "prefixed", "10.0.0.1"),
        (who, "allow", "describe-configs", "cluster", "kafka-cluster", "literal", "*"),
    }
    eventually(lambda: entries(shoal, "-p", user) == {*literal, denied, *others})
    assert entries(shoal, "-p", user, "-t", "jobs") == {*literal, denied}, "all that apply"
    assert entries(shoal, "-t", "job", "--prefixed") == {denied}
    table = [line.split() for line in shoal.says("acls", "list", "-p", user).splitlines()]
    assert list(denied) in table
    said = shoal.says("acls", "remove", "-p", user, "--deny", "-t", "job", "--prefixed", "-y")
    assert said == f"Removed: deny all on topic job… for {who} from 10.0.0.1.\n"
    eventually(lambda: entries(shoal, "-p", user) == {*literal, *others})
    assert len(shoal.json("acls", "remove", "-p", user)) == 4
    assert shoal.says("acls", "remove", "-p", user) == "No access control entry matches.\n"
    eventually(lambda: entries(shoal, "-p", user) == set())
    assert shoal.says("acls", "list", "-p", user) == "No access control entry matches.\n"


def test_short_forms(shoal_as: Callable[..., Shoal]) -> None:
    """A user with them can do the work, and nothing else."""
    shoal, topic, group = shoal_as(), new("topic"), new("group")
    user = new("worker")
    shoal.run("topics", "create", topic, "-p", "1")
    shoal.run("users", "add", user, "--password-file", "-", stdin="pw of the worker\n")
    worker = shoal_as("ann", "SCRAM-SHA-512")
    worker.environment["SHOAL_CLIENT_SASL_USERNAME"] = user
    worker.environment["SHOAL_CLIENT_SASL_PASSWORD"] = "pw of the worker"
    eventually(lambda: "TOPIC_AUTHORIZATION_FAILED" in refused(worker, "produce", topic))
    shoal.run("acls", "add", "-p", user, "--producer", "-t", topic)
    eventually(lambda: worker.run("produce", topic, stdin="1\n2\n"))
    consume = ("consume", topic, "-g", group, "--from-beginning", "-n", "2")
    share = ("share-consume", topic, "-g", f"{group}-share", "--from-beginning", "-n", "2")
    assert "GROUP_AUTHORIZATION_FAILED" in refused(worker, *share)
    words = ("-g", group, "--prefixed", "--share-consumer", "-t", topic)
    shoal.run("acls", "add", "-p", user, *words)
    shoal.run("acls", "add", "-p", user, "--consumer", "-t", topic)
    entry = (f"User:{user}", "allow", "read", "group", group, "prefixed", "*")
    eventually(lambda: entry in entries(shoal, "-p", user))
    assert eventually(lambda: worker.run(*consume)).stdout == "1\n2\n"
    assert eventually(lambda: worker.run(*share, "-f", "{value}")).stdout == "1\n2\n"
    assert "CLUSTER_AUTHORIZATION_FAILED" in refused(worker, "acls", "list")


def test_a_redrive_has_its_users_rights(shoal_as: Callable[..., Shoal], secured: Secured) -> None:
    """Letters that name topics of others, in a topic where the forger may write, are left."""
    if secured.is_kafka:
        return  # Kafka 4.3 has no dead letters.
    admin, name, user = shoal_as(), new("redriven"), secured.new_user()
    letters, group = f"dlq.{name}", f"{name}-group"
    for topic in (name, letters, f"secret-{name}", f"victim-{name}"):
        admin.run("topics", "create", topic, "-p", "1")
    admin.run("configs", "set", "group", group, f"errors.deadletterqueue.topic.name={letters}")
    admin.run("produce", f"secret-{name}", stdin="the salaries\n")
    for value, topic in (("a", name), ("", f"secret-{name}"), ("b", f"victim-{name}")):
        about = {"topic": topic, "partition": "0", "offset": "0", "group": group}
        headers = [("__dlq.errors." + key, text) for key, text in about.items()]
        line = json.dumps({"value": value or None, "headers": headers})
        admin.run("produce", letters, "--input", "json", stdin=f"{line}\n")
    for kind, operation, names in (
        ("-t", "read", (letters, name, "shoal-redrives")),
        ("-t", "write", (name, "shoal-redrives")),
        ("-t", "create", ("shoal-redrives",)),
        ("-g", "read", (f"redrive.{letters}", group)),
        ("-g", "describe-configs", (group,)),
    ):
        for one in names:
            admin.run("acls", "add", "-p", user, "--operation", operation, kind, one)
    said = shoal_as(user, "OAUTHBEARER").refusal("dlq", "redrive", letters)
    assert (
        f"rejected 2 records. Last error: topic 'victim-{name}' (TOPIC_AUTHORIZATION_FAILED)"
        in said
    )
    for topic, found in ((name, "a\n"), (f"victim-{name}", "")):
        assert admin.says("consume", topic, "--from-beginning", "-e") == found


def refused(shoal: Shoal, *words: str) -> str:
    """Return the error of a command that the cluster refuses."""
    return shoal.refusal(*words, stdin="x\n")


def test_users(shoal_as: Callable[..., Shoal], tmp_path: Path) -> None:
    shoal, user = shoal_as(), new("user")
    file = tmp_path / "password"
    file.write_text("first pässword\n")
    both = ("-m", "SCRAM-SHA-256", "-m", "scram-sha-512")
    said = shoal.says("users", "add", user, "--password-file", str(file), *both)
    assert said == f"Set the password of {user}.\n"
    rows = [
        {"user": user, "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]
    eventually(lambda: [r for r in shoal.json("users", "list") if r["user"] == user] == rows)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        found = shoal_as("ann", mechanism)
        found.environment["SHOAL_CLIENT_SASL_USERNAME"] = user
        found.environment["SHOAL_CLIENT_SASL_PASSWORD"] = "first pässword"
        assert found.json("whoami")[0]["principal"] == f"User:{user}"
    shoal.run("users", "remove", user, "-m", "SCRAM-SHA-256")
    eventually(lambda: shoal.json("users", "describe", user) == rows[1:])
    said = shoal.says("users", "remove", user)
    assert said == f"Removed SCRAM-SHA-512 of {user}.\n"
    eventually(lambda: "RESOURCE_NOT_FOUND" in shoal.refusal("users", "remove", user))
    assert shoal.says("users", "remove", user, "--if-exists") == ""


def test_a_password_at_a_prompt(shoal_as: Callable[..., Shoal]) -> None:
    shoal, user = shoal_as(), new("user")
    for again, status in (("other", 2), ("typed", 0)):
        terminal = shoal.at_a_terminal("users", "add", user)
        terminal.expect(f"New password of {user}: ")
        terminal.type("typed\n")
        terminal.expect("Again: ")
        terminal.type(f"{again}\n")
        terminal.expect("differ" if status else "Set the password")
        assert terminal.ended() == status
        assert "typed" not in terminal.text
    login = shoal_as("ann", "SCRAM-SHA-512")
    login.environment["SHOAL_CLIENT_SASL_USERNAME"] = user
    login.environment["SHOAL_CLIENT_SASL_PASSWORD"] = "typed"
    eventually(lambda: login.run("whoami"))


def test_delegation_tokens(
    shoal_as: Callable[..., Shoal], secured: Secured, tmp_path: Path
) -> None:
    """The file of a new token logs in, together with the settings of TLS."""
    shoal, file = shoal_as("ann", "SCRAM-SHA-256"), tmp_path / "token.properties"
    (created,) = shoal.json("tokens", "create", "--output", str(file), "--max-lifetime", "2h")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert created["owner"] == "User:ann"
    login = shoal_as("ann", "SCRAM-SHA-256")
    settings = ("security.protocol=SASL_SSL", f"ssl.ca.location={secured.ca}")
    file.write_text(file.read_text() + "\n".join(settings))
    login.environment["SHOAL_COMMAND_CONFIG"] = str(file)
    login.environment["SHOAL_BOOTSTRAP_SERVERS"] = secured.addresses["BOTH"]
    (who,) = eventually(lambda: json.loads(login.run("whoami", "--format", "json").stdout))
    assert who["principal"] == "User:ann"
    assert who["authenticated_by"] == "SASL_SSL with SCRAM-SHA-256 and a delegation token"
    refusal = login.refusal("tokens", "create", "--output", str(tmp_path / "other"))
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refusal
    assert not (tmp_path / "other").exists()
    assert [row["id"] for row in shoal.json("tokens", "list")] == [created["id"]]
    assert "is valid until" in shoal.says("tokens", "renew", created["id"], "--for", "1h")
    hmac = file.read_text().partition('password="')[2].partition('"')[0]
    assert hmac
    for words in (("tokens", "list"), ("tokens", "list", "--format", "json")):
        assert hmac not in shoal.says(*words)
    assert shoal.says("tokens", "expire", created["id"]) == f"Ended token {created['id']}.\n"
    eventually(lambda: shoal.json("tokens", "list") == [])
    assert "no token" in shoal.refusal("tokens", "renew", created["id"])
    again = shoal.refusal("tokens", "create", "--output", str(file), status=2)
    assert "exists already" in again


def test_tokens_for_others(shoal_as: Callable[..., Shoal], tmp_path: Path) -> None:
    admin, ann, other = shoal_as(), shoal_as("ann"), new("job")
    words = ("tokens", "create", "--output", str(tmp_path / "token"), "--owner", other)
    assert "DELEGATION_TOKEN_AUTHORIZATION_FAILED" in ann.refusal(*words)
    admin.run("acls", "add", "-p", "ann", "--operation", "create-tokens", "--user", other)
    (created,) = eventually(lambda: json.loads(ann.run(*words, "--format", "json").stdout))
    assert (created["owner"], created["requester"]) == (f"User:{other}", "User:ann")
    (row,) = eventually(lambda: admin.json("tokens", "list", "--owner", other))
    assert row["requester"] == "User:ann"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_whoami(shoal_as: Callable[..., Shoal], secured: Secured, mechanism: str) -> None:
    (row,) = shoal_as("ann", mechanism).json("whoami")
    assert row == {
        "principal": "User:ann",
        "authenticated_by": f"SASL_SSL with {mechanism}",
        "broker": secured.addresses["BOTH"],
        "cluster_operations": [],
    }
    (row,) = shoal_as("admin", mechanism).json("whoami")
    assert row["principal"] == "User:admin"
    assert {"create", "alter", "describe", "cluster-action"} <= set(row["cluster_operations"])


def test_whoami_of_a_certificate_and_of_nobody(
    shoal_as: Callable[..., Shoal], secured: Secured, tmp_path: Path
) -> None:
    shoal, pair = shoal_as(listener="MUTUAL"), tmp_path / "pair.pem"
    pair.write_text(pem_pair(secured.client_ca.issue_cert("a.example", common_name="ann")))
    shoal.environment["SHOAL_CLIENT_SSL_KEYSTORE_LOCATION"] = str(pair)
    (row,) = shoal.json("whoami")
    assert row["principal"].startswith("User:CN=ann,")
    assert row["authenticated_by"] == "SSL"
    plain = Shoal(secured.addresses["PLAINTEXT"])
    assert plain.json("whoami")[0]["principal"] == "User:ANONYMOUS"


def explained(shoal: Shoal, *words: str) -> list[tuple[str, str, bool | None, str]]:
    return [
        (row["operation"], row["resource"], row["allowed"], row["rule"])
        for row in shoal.json("explain", *words)
    ]


def test_explain_names_the_rule(shoal_as: Callable[..., Shoal]) -> None:
    """And it decides as the broker does."""
    shoal, topic = shoal_as(), new("explained")
    shoal.run("topics", "create", topic)
    shoal.run("acls", "add", "-p", "ann", "--operation", "write", "-t", "explained", "--prefixed")
    ann = shoal_as("ann")
    eventually(lambda: ann.run("produce", topic, stdin="x\n"))
    assert explained(shoal, "ann", "Produce", f"topic:{topic}")[0] == (
        "write",
        f"topic {topic}",
        True,
        "allow write on topic explained… for User:ann",
    )
    assert "User:ann may send Produce." in shoal.says("explain", "ann", "produce", f"topic:{topic}")
    describe = explained(shoal, "ann", "ListOffsets", topic)
    assert describe[0][2], "WRITE implies DESCRIBE"
    shoal.run("acls", "add", "-p", "*", "--deny", "--operation", "all", "-t", topic)
    eventually(lambda: "AUTHORIZATION_FAILED" in refused(ann, "produce", topic))
    assert explained(shoal, "User:ann", "Produce", f"topic:{topic}")[0] == (
        "write",
        f"topic {topic}",
        False,
        f"deny all on topic {topic} for User:*",
    )
    said = shoal.says("explain", "ann", "Produce", f"topic:{topic}")
    assert "User:ann may not send Produce." in said
    assert explained(shoal, "bob", "share-fetch", "topic:other", "group:g") == [
        ("read", "group g", False, NO_ENTRY),
        ("read", "topic other", False, NO_ENTRY),
    ]


NO_ENTRY = "no entry matches the resource, and allow.everyone.if.no.acl.found is false"


def test_explain_without_all_resources(shoal_as: Callable[..., Shoal]) -> None:
    shoal = shoal_as()
    assert [row[:3] for row in explained(shoal, "bob", "ShareFetch", "topic:t")] == [
        ("read", "each group", None),
        ("read", "topic t", False),
    ]
    said = shoal.says("explain", "bob", "ShareFetch", "topic:t")
    assert "User:bob may not send ShareFetch." in said
    shoal.run("acls", "add", "-p", "eve", "--operation", "read", "-t", "t")
    eventually(lambda: explained(shoal, "eve", "ShareFetch", "topic:t")[1][2])
    said = shoal.says("explain", "eve", "ShareFetch", "topic:t")
    assert "Whether User:eve may send ShareFetch depends on the resources." in said
    shoal.run("acls", "add", "-p", "eve", "--operation", "create", "--cluster")
    eventually(lambda: explained(shoal, "eve", "CreateTopics", "t")[0][2])
    assert explained(shoal, "eve", "CreateTopics", "t")[0] == (
        "create",
        "the cluster",
        True,
        "allow create on the cluster for User:eve",
    )
    assert shoal.says("explain", "eve", "ApiVersions") == "ApiVersions needs no permission.\n"


def test_explain_by_host(shoal_as: Callable[..., Shoal]) -> None:
    shoal, user = shoal_as(), new("user")
    shoal.run("acls", "add", "-p", user, "--operation", "alter", "--cluster", "--host", "10.0.0.1")
    words = (user, "CreateAcls")
    eventually(lambda: explained(shoal, *words, "--host", "::ffff:10.0.0.1")[0][2])
    assert not explained(shoal, *words, "--host", "10.0.0.2")[0][2]
    done = shoal.run("explain", *words)
    assert "entries for single hosts are ignored (10.0.0.1). Name one with --host." in done.stderr
    assert f"User:{user} may not send CreateAcls." in done.stdout


def test_explain_super_users(shoal_as: Callable[..., Shoal], secured: Secured) -> None:
    """Kafka hides the config, as all that it does not know."""
    done = shoal_as().run("explain", "admin", "CreateAcls")
    if secured.is_kafka:
        assert "the brokers do not show super.users" in done.stderr
    else:
        assert done.stderr == ""
        assert "User:admin is a super user" in done.stdout
        assert "User:admin may send CreateAcls." in done.stdout


REFUSALS = [
    (["acls", "add", "--operation", "read", "-t", "x"], 2, "name a user with --principal"),
    (["acls", "add", "-p", "ann", "--operation", "read"], 2, "name a resource"),
    (["acls", "add", "-p", "ann", "-t", "x"], 2, "name an --operation, or use --producer"),
    (
        ["acls", "add", "-p", "ann", "--operation", "cluster-action", "-t", "x"],
        2,
        "Use one of all, read",
    ),
    (["acls", "add", "-p", "ann", "--producer", "-g", "x"], 2, "neither producers nor consumers"),
    (["acls", "add", "-p", "ann", "--operation", "read", "-t", ""], 1, "INVALID_REQUEST"),
    (["acls", "remove"], 2, "name a user with --principal, or a resource"),
    (["acls", "remove", "-p", "ann", "--producer"], 2, "need --topic, --group or the like"),
    (["users", "add", "bob"], 2, "there is no terminal to ask for the password"),
    (["users", "add", "bob", "--password-file", "/none"], 2, "cannot read /none"),
    (["users", "add", "bob", "--password-file", "/dev/null"], 2, "the password is empty"),
    (["users", "add", "bob", "--iterations", "1"], 2, "must be 4096 to 16384, not 1"),
    (["users", "describe", "nobody"], 1, "shoal users list"),
    (["tokens", "create"], 2, "--output"),
    (["tokens", "create", "--output", "no folder/x"], 2, "cannot create no folder/x"),
    (["tokens", "create", "--output", "x", "--max-lifetime", "soon"], 2, "not 'soon'"),
    (["explain", "ann", "Prodouce"], 2, "does not know what the API 'Prodouce' needs"),
    (["explain", "ann", "Produce", "orders"], 2, "Write topic:orders or transactional-id:orders"),
    (["explain", "ann", "Produce", "group:g"], 2, "needs no permission on group g, but on: topic"),
    (["explain", "ann", "Produce", "topic:"], 2, "topic: has no name"),
    (["whoami", "-X", "sasl.password=pl4nted"], 2, "would show a secret in the list of processes"),
]


@pytest.mark.parametrize(("words", "status", "said"), REFUSALS, ids=lambda v: str(v)[:40])
def test_refusals(shoal_as: Callable[..., Shoal], words: list[str], status: int, said: str) -> None:
    found = " ".join(shoal_as().refusal(*words, status=status).split())
    assert said in found
    assert "pl4nted" not in found


@pytest.mark.java
def test_a_cluster_without_an_authorizer(get_kafka: Callable[..., SharedKafka]) -> None:
    shoal = Shoal(get_kafka().bootstrap)
    assert "set authorizer.class.name" in shoal.refusal("acls", "list").lower()
    assert explained(shoal, "ann", "Produce", "topic:x")[0][2]
    row = shoal.json("whoami")[0]
    assert row["principal"] == "User:ANONYMOUS"
    assert "set delegation.token.secret.key" not in str(row)


def test_no_process_shows_a_secret(
    shoal_as: Callable[..., Shoal], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password is in a file. Other processes see neither it nor a variable's value."""
    monkeypatch.setenv(forks.SWITCH, "0")  # The kernel shows other arguments for a fork.
    shoal = shoal_as()
    topic = new("watched")
    shoal.run("topics", "create", topic)
    running = shoal.start("consume", topic)
    try:
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        lines = []
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    lines.append(file.read())
            except OSError:
                continue
        ours = [line for line in lines if topic.encode() in line]
        assert ours
        assert not [line for line in ours if PASSWORDS["admin"].encode() in line]
    finally:
        running.kill()


def quotas(shoal: Shoal, *words: str) -> dict[str, float]:
    return {row["quota"]: row["value"] for row in shoal.json("quotas", "list", *words)}


def test_quotas_are_set_listed_and_removed(shoal_as: Callable[..., Shoal]) -> None:
    shoal, user = shoal_as(), new("user")
    of_user = ("--user", user)
    assert quotas(shoal, *of_user) == {}
    values = ("producer_byte_rate=1048576", "request_percentage=12.5")
    said = shoal.says("quotas", "set", *values, *of_user)
    assert said == f"Set producer_byte_rate, request_percentage of user {user}.\n"
    shoal.run("quotas", "set", "consumer_byte_rate=7", *of_user, "--client-defaults")
    (row, *_) = eventually(lambda: shoal.json("quotas", "list", *of_user, "--client-defaults"))
    assert row["entity"] == {"client-id": None, "user": user}
    assert row["for"] == f"client-id <default>, user {user}"
    shown = shoal.says("quotas", "list", *of_user)
    assert "1048576" in shown
    assert "12.5" in shown
    shoal.run("quotas", "remove", *of_user, "--client-defaults")
    shoal.run("quotas", "remove", "producer_byte_rate", *of_user)
    eventually(lambda: quotas(shoal, *of_user) == {"request_percentage": 12.5})
    shoal.run("quotas", "set", "connection_creation_rate=5", "--ip", "192.0.2.9")
    eventually(lambda: quotas(shoal, "--ip", "192.0.2.9") == {"connection_creation_rate": 5})
    shoal.run("quotas", "remove", "--ip", "192.0.2.9")
    eventually(lambda: quotas(shoal, "--ip", "192.0.2.9") == {})


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["set", "producer_byte_rate=1"], 2, "--user, --client or --ip"),
        (["set", "producer_byte_rate=0", "--user", "a"], 2, "must be a number above 0, not '0'"),
        (["set", "producer_byte_rate=1.5", "--user", "a"], 1, "producer_byte_rate"),
        (["set", "rate=1", "--user", "a"], 2, "rate is not a quota of user a. Use producer_byte"),
        (["set", "producer_byte_rate=1", "--ip", "192.0.2.9"], 2, "Use connection_creation_rate"),
        (["set", "rate=1", "--ip", "192.0.2.9", "--user", "a"], 2, "--ip cannot be combined"),
        (["set", "rate=1", "--user", "a", "--user-defaults"], 2, "but not both"),
        (["remove", "--user", "nobody-here"], 1, "There are no quotas of user nobody-here"),
    ],
)
def test_quotas_that_cannot_be(
    shoal_as: Callable[..., Shoal], words: list[str], status: int, said: str
) -> None:
    assert said in shoal_as().refusal("quotas", *words, status=status)

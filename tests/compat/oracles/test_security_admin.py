"""Administration of security: the same requests to Apache Kafka and to Shoal, equal answers."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from shoal.protocol.api import ApiKey
from shoal.protocol.errors import ErrorCode
from support.brokers.wireclient import WireClient
from support.kafka.kafka_tools import KafkaTools
from support.runs.conditions import eventually
from support.security import token_brokers
from support.security.token_brokers import BOB, EXPIRE, HOUR_MS, RENEW, USERS, Running

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

pytestmark = [pytest.mark.java, pytest.mark.nightly]

#: Hosts of entries that are networks, or look like some.
NETWORKS = (
    *("10.0.0.0/8", "10.0.0.5/24", "0.0.0.0/0", "010.0.0.0/08", "10.0.0.0/33", "300.0.0.0/8"),
    *("10.0.0/8", "a/8", "10.0.0.0/8/9", "10.0.0.0/", "/8", "*/8", "10.0.0.0/255.0.0.0"),
    *("fe80::/10", "fe80::1/+64", "fe80::/129", "fe80::/-1", "fe80::/x", "fe80::/", "x::/8"),
)

CONFIGS = token_brokers.CONFIGS | {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:carol;User:ANONYMOUS",
}
#: Lists whose order is that of a Java hash map.
UNORDERED = {"resources", "acls", "matching_acls", "credential_infos", "tokens"}
SCRAM_APIS = (ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
#: The place of an answer of a broker that closes the connection.
CLOSED = "the connection is closed"


class Pair:
    """Both brokers."""

    def __init__(self, kafka: str, shoal: str) -> None:
        self._kafka, self._shoal = kafka, shoal

    def same(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send a request to both. Check that they answer alike, and return the answer.

        Kafka acknowledges a change before its broker has applied it, so a description is asked for
        again if it differs.
        """
        unordered = UNORDERED | ({"results"} if api in SCRAM_APIS else set())

        def answers() -> list[Any]:
            kafka, shoal = (
                plain(ask(bootstrap, api, version, body), unordered)
                for bootstrap in (self._kafka, self._shoal)
            )
            assert shoal == kafka, (api.name, version, body)
            return [kafka, shoal]

        if api.name.startswith("DESCRIBE_"):
            return eventually(answers, timeout_s=5)[0]
        return answers()[0]

    def same_output(self, tool: str, *words: str) -> list[str]:
        """Run one of Kafka's tools on both. Check that it prints the same words in the same lines,
        in any order, and return the lines."""
        kafka, shoal = (
            sorted(
                " ".join(sorted(line.replace(",", " ").split()))
                for line in KafkaTools(bootstrap).run(tool, *words).splitlines()
            )
            for bootstrap in (self._kafka, self._shoal)
        )
        assert shoal == kafka, (tool, words)
        return shoal


def ask(bootstrap: str, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
    with WireClient(bootstrap) as client:
        try:
            return client.call(api, version, body)
        except ConnectionResetError:
            return CLOSED


def plain(value: Any, unordered: Collection[str], name: str = "") -> Any:
    """Return an answer as dicts and lists, with unordered lists sorted."""
    if dataclasses.is_dataclass(value):
        pairs = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, SimpleNamespace):
        pairs = vars(value)
    elif isinstance(value, tuple):
        found = [plain(item, unordered) for item in value]
        return sorted(found, key=str) if name in unordered else found
    else:
        return value
    return {n: plain(v, unordered, n) for n, v in pairs.items()}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with token_brokers.running(tmp_path_factory.mktemp("secured"), CONFIGS) as found:
        yield found


@pytest.fixture(scope="module")
def pair(brokers: Running) -> Pair:
    return Pair(brokers.kafka["PLAINTEXT"], brokers.shoal["PLAINTEXT"])


# Access control entries

TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
LITERAL, PREFIXED, MATCH, ANY = 3, 4, 2, 1
VERSIONS = (1, 2, 3)


def creation(**fields: Any) -> dict[str, Any]:
    """Return an entry that allows User:a to read the topic t."""
    return {
        "resource_type": TOPIC,
        "resource_name": "t",
        "resource_pattern_type": LITERAL,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    } | fields


def acl_filter(**fields: Any) -> dict[str, Any]:
    """Return a filter that selects all entries."""
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | fields


@pytest.fixture
def no_acls(pair: Pair) -> Pair:
    """Both brokers without entries."""
    pair.same(ApiKey.DELETE_ACLS, 3, {"filters": [acl_filter()]})
    return pair


ODD_CREATIONS: list[dict[str, Any]] = [
    {},
    *({"resource_type": number} for number in (0, 1, 3, 5, 6, 7, 8, 99, -1)),
    *({"resource_pattern_type": number} for number in (0, 1, 2, 4, 5, 99)),
    *({"operation": number} for number in (0, 1, 2, 14, 15, 16, 99)),
    *({"permission_type": number} for number in (0, 1, 2, 4, 99)),
    *({"principal": text} for text in ("", "a", "User:", ":", "Group:x", "User:*", "User:ä b")),
    *({"host": text} for text in ("", "127.0.0.1", "nonsense", "::1")),
    *({"host": text} for text in NETWORKS),
    *({"resource_name": text} for text in ("", "*", "..", "x" * 300)),
    {"resource_type": CLUSTER, "resource_name": "x"},
    {"resource_type": CLUSTER, "resource_name": ""},
    {"resource_type": CLUSTER, "resource_name": "kafka-cluster"},
    {"resource_type": CLUSTER, "resource_name": "kafka", "resource_pattern_type": PREFIXED},
    {"resource_type": CLUSTER, "resource_name": "kafka-cluster", "resource_pattern_type": PREFIXED},
    {"resource_type": 99, "resource_name": ""},
    {"resource_type": 99, "resource_pattern_type": 99, "operation": 99, "principal": ""},
]


@pytest.mark.parametrize("version", VERSIONS)
def test_creations_of_every_kind(no_acls: Pair, version: int) -> None:
    for odd in ODD_CREATIONS:
        no_acls.same(ApiKey.CREATE_ACLS, version, {"creations": [creation(**odd)]})
    no_acls.same(ApiKey.DESCRIBE_ACLS, version, acl_filter())


def test_creations_in_one_request(no_acls: Pair) -> None:
    """Each has its own result. One that Kafka cannot build refuses all."""
    for creations in (
        [],
        [creation(resource_name=""), creation(), creation(), creation(principal="x")],
        [creation(), creation(operation=ANY), creation(resource_name="")],
    ):
        no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": creations})
        no_acls.same(ApiKey.DESCRIBE_ACLS, 3, acl_filter())


NAMES = ("t", "te", "test", "*", "u")


def some_acls() -> list[dict[str, Any]]:
    return [
        creation(resource_name=name, resource_pattern_type=pattern, resource_type=resource, **more)
        for name in NAMES
        for pattern in (LITERAL, PREFIXED)
        for resource in (TOPIC, GROUP)
        for more in (
            {},
            {"principal": "User:b", "operation": 4},
            {"host": "10.0.0.1", "permission_type": 2},
        )
    ]


FILTERS: list[dict[str, Any]] = [
    {},
    *({"resource_type_filter": number} for number in (0, 2, 4, 7, 99)),
    *({"pattern_type_filter": number} for number in (0, 2, 3, 4, 99)),
    *({"operation": number} for number in (0, 2, 3, 4, 99)),
    *({"permission_type": number} for number in (0, 2, 3, 99)),
    *({"principal_filter": text} for text in ("", "User:a", "User:b", "a", "User:*")),
    *({"host_filter": text} for text in ("", "*", "10.0.0.1")),
    *(
        {"resource_name_filter": name, "pattern_type_filter": pattern}
        for name in ("", *NAMES, "testing")
        for pattern in (ANY, MATCH, LITERAL, PREFIXED)
    ),
]


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_of_every_kind(no_acls: Pair, version: int) -> None:
    found = no_acls.same(ApiKey.CREATE_ACLS, version, {"creations": some_acls()})
    assert {row["error_code"] for row in found["results"]} == {0}
    # Versions differ in their encoding only.
    some = FILTERS if version == VERSIONS[-1] else FILTERS[::5]
    for fields in some:
        no_acls.same(ApiKey.DESCRIBE_ACLS, version, acl_filter(**fields))
    for fields in reversed(some):
        filters = [acl_filter(**fields), acl_filter(resource_name_filter="none")]
        no_acls.same(ApiKey.DELETE_ACLS, version, {"filters": filters})
        no_acls.same(ApiKey.DESCRIBE_ACLS, version, acl_filter())


def test_an_entry_that_several_filters_delete(no_acls: Pair) -> None:
    no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": some_acls()})
    filters = [acl_filter(resource_name_filter="t"), acl_filter(), acl_filter(operation=99)]
    found = no_acls.same(ApiKey.DELETE_ACLS, 3, {"filters": filters})
    assert [len(row["matching_acls"]) for row in found["filter_results"]] == [12, 60, 0]
    no_acls.same(ApiKey.DELETE_ACLS, 3, {"filters": []})


EVERYTHING = [creation(resource_name=f"t{number}") for number in range(10_001)]


def test_more_entries_than_one_request_may_create(no_acls: Pair) -> None:
    no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": EVERYTHING})
    no_acls.same(ApiKey.DESCRIBE_ACLS, 3, acl_filter())


@pytest.mark.nightly
def test_limits_of_one_request(no_acls: Pair) -> None:
    """10,000 entries, for which Kafka computes for a minute."""
    no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": EVERYTHING[:10]})
    no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": EVERYTHING[:10_000]})
    twice = [acl_filter(), acl_filter(resource_name_filter="t1")]
    no_acls.same(ApiKey.DELETE_ACLS, 3, {"filters": twice})
    no_acls.same(ApiKey.CREATE_ACLS, 3, {"creations": EVERYTHING})
    no_acls.same(ApiKey.DELETE_ACLS, 3, {"filters": [acl_filter()]})
    no_acls.same(ApiKey.DELETE_ACLS, 3, {"filters": [acl_filter(resource_name_filter="t7")]})


def test_kafka_acls(no_acls: Pair) -> None:
    """Kafka's own tool. Each way to add and list entries is a request of the tests above."""

    def acls(*words: str) -> list[str]:
        return no_acls.same_output("acls", *words)

    alice = ("--allow-principal", "User:alice")
    acls("--add", *alice, "--consumer", "--group", "*", "--topic", "c-", *PREFIX)
    assert len(acls("--list", "--topic", "c-1", "--resource-pattern-type", "match")) > 3
    acls("--remove", "--force", "--topic", "c-", *PREFIX)


PREFIX = ("--resource-pattern-type", "prefixed")


# Without security


@pytest.fixture(scope="module")
def open_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Both brokers without authorizer and without a secret key of delegation tokens."""
    configs = {n: v for n, v in token_brokers.CONFIGS.items() if "secret.key" not in n}
    with token_brokers.running(tmp_path_factory.mktemp("open"), configs) as found:
        yield found


@pytest.fixture(scope="module")
def open_pair(open_brokers: Running) -> Pair:
    return Pair(open_brokers.kafka["PLAINTEXT"], open_brokers.shoal["PLAINTEXT"])


@pytest.mark.parametrize("version", VERSIONS)
def test_acls_without_an_authorizer(open_pair: Pair, version: int) -> None:
    odd = {"operation": ANY}
    for creations in ([], [creation(), creation()], [creation(**odd)], [creation(operation=0)]):
        open_pair.same(ApiKey.CREATE_ACLS, version, {"creations": creations})
    for filters in ([], [acl_filter(), acl_filter()], [acl_filter(operation=0)]):
        open_pair.same(ApiKey.DELETE_ACLS, version, {"filters": filters})
    for one in (acl_filter(), acl_filter(operation=0)):
        open_pair.same(ApiKey.DESCRIBE_ACLS, version, one)


# SCRAM credentials

SHA_256, SHA_512 = 1, 2


def deletion(name: str, mechanism: int = SHA_256) -> dict[str, Any]:
    return {"name": name, "mechanism": mechanism}


def upsertion(name: str, mechanism: int = SHA_256, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"p" * 32,
    } | fields


ALTERATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
    ([], []),
    ([deletion("a")], []),
    ([], [upsertion("a")]),
    ([], [upsertion("a", iterations=5000)]),
    ([], [upsertion("a", SHA_512)]),
    *(([], [upsertion("b", number)]) for number in (0, 3, 99, -1)),
    *(([deletion("a", number)], []) for number in (0, 3, 99, -1)),
    *(([], [upsertion("b", iterations=n)]) for n in (-1, 0, 4095, 4096, 16_384, 16_385)),
    ([], [upsertion("")]),
    ([deletion("")], []),
    ([deletion("", 9)], [upsertion("", 9)]),
    ([], [upsertion("c"), upsertion("c", SHA_512)]),
    ([], [upsertion("c"), upsertion("c"), upsertion("c")]),
    ([], [upsertion("c", iterations=1), upsertion("c")]),
    ([], [upsertion("c"), upsertion("c", iterations=1)]),
    ([deletion("a")], [upsertion("a", SHA_512)]),
    ([deletion("a"), deletion("a", SHA_512)], []),
    ([deletion("a"), deletion("a"), deletion("a")], []),
    ([deletion("zz")], [upsertion("zz")]),
    ([], [upsertion("d", salted_password=b"")]),
    ([], [upsertion("d", salted_password=b""), upsertion("d")]),
    ([], [upsertion("d", salt=b"", salted_password=b"x")]),
    ([deletion("d")], [upsertion("e"), upsertion("f", 9), upsertion("g", iterations=1)]),
    ([], [upsertion("ä,=ü")]),
    ([deletion("a"), deletion("b", SHA_512)], []),
]
DESCRIPTIONS: list[list[dict[str, str]] | None] = [
    None,
    [],
    [{"name": "a"}],
    [{"name": "a"}, {"name": "nobody"}, {"name": "b"}, {"name": "b"}, {"name": ""}],
    [{"name": "nobody"}, {"name": "nobody"}],
]


def test_scram_credentials(pair: Pair) -> None:
    for deletions, upsertions in ALTERATIONS:
        body = {"deletions": deletions, "upsertions": upsertions}
        pair.same(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
        for users in DESCRIPTIONS:
            pair.same(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})


def test_kafka_configs(pair: Pair) -> None:
    """Kafka's own tool creates, describes and deletes users."""
    user = ("--entity-type", "users", "--entity-name", "tool")

    def configs(*words: str) -> list[str]:
        return pair.same_output("configs", *words)

    password = "SCRAM-SHA-256=[iterations=8192,password=secret]"
    configs("--alter", "--add-config", password, *user)
    assert any("SCRAM-SHA-256=iterations=" in line for line in configs("--describe", *user))
    configs("--alter", "--delete-config", "SCRAM-SHA-256", *user)


# Delegation tokens


@pytest.mark.parametrize("owner", [None, "User:bob", "Group:x", ":", "User:"])
@pytest.mark.parametrize("bootstrap", ["pair", "open_pair"])
def test_tokens_over_plaintext(
    request: pytest.FixtureRequest, bootstrap: str, owner: str | None
) -> None:
    both: Pair = request.getfixturevalue(bootstrap)
    kind, name = (None, None) if owner is None else owner.split(":")
    renewers = [{"principal_type": "Group", "principal_name": "x"}]
    body = {"renewers": renewers, "max_lifetime_ms": -1}
    for version in (1, 2, 3):
        of = {"owner_principal_type": kind, "owner_principal_name": name} if version == 3 else {}
        both.same(ApiKey.CREATE_DELEGATION_TOKEN, version, body | of)
        owners = None if kind is None else [{"principal_type": kind, "principal_name": name}]
        both.same(ApiKey.DESCRIBE_DELEGATION_TOKEN, version, {"owners": owners})
    for version in (1, 2):
        for period_ms in (-1, 0, 1 << 62):
            period = {"hmac": b"x", "renew_period_ms": period_ms}
            both.same(ApiKey.RENEW_DELEGATION_TOKEN, version, period)
            period = {"hmac": b"x", "expiry_time_period_ms": period_ms}
            both.same(ApiKey.EXPIRE_DELEGATION_TOKEN, version, period)


DESCRIBE, CREATE_TOKENS, DESCRIBE_TOKENS = 8, 13, 14
DELEGATION_TOKEN = 6


@pytest.mark.usefixtures("no_acls")
def test_permissions_of_tokens(brokers: Running) -> None:
    """A token for another user needs CREATE_TOKENS. Tokens of others are shown with DESCRIBE on
    the token, or DESCRIBE_TOKENS on its owner."""
    pair = brokers.pair()

    def see() -> None:
        for user in USERS:
            for owners in (None, [BOB], [("User", "alice")]):
                pair.same("describe", user, owners)

    # Only Kafka makes tokens for a principal that is not a User (test_delegation_tokens).
    for user in USERS:
        for owner in ((None, None), BOB, ("User", "alice"), (None, "x")):
            pair.same("create", user, owner=owner)
    refused = pair.same("create", "alice", owner=BOB, renewers=(("Group", "x"),))
    assert refused["error_code"] == ErrorCode.delegation_token_authorization_failed
    see()
    pair.same("allow", "alice", CREATE_TOKENS, USER, "User:bob")
    assert pair.same("create", "alice", owner=BOB)["error_code"] == 0
    see()
    pair.same("allow", "alice", DESCRIBE_TOKENS, USER, "User:bob")
    see()
    pair.same("allow", "bob", DESCRIBE, DELEGATION_TOKEN, 0)
    see()
    for api in (RENEW, EXPIRE):
        pair.same("change", "alice", api, 4, HOUR_MS)


def test_a_listener_without_a_secret_key(open_brokers: Running) -> None:
    pair = open_brokers.pair()
    for owner in ((None, None), BOB, (None, "bob")):
        pair.same("create", "alice", owner=owner)
    pair.same("create", "alice", renewers=(("Group", "x"),))
    for owners in (None, [], [BOB]):
        pair.same("describe", "alice", owners)
    for api in (RENEW, EXPIRE):
        pair.same("change", "alice", api, -1, 1)

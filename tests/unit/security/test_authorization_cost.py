"""The work of one authorization does not depend on the entries of other resources and users.

Work is what the authorizer looks up in its indexes and the functions that it calls, which are the
same in each run.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from shoal.security import authorizer
from shoal.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from shoal.security.authorizer import DECISIONS_MAX, NAME_SIZE_MAX, Authorizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

TOPIC, GROUP, TRANSACTION = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALICE, HOST, NAME = "User:alice", "10.0.0.7", "orders-eu"
MANY = 2_000
#: What the requests ask for each partition and for the whole.
CHECKS = {
    "Produce": [(WRITE, TOPIC)],
    "transactional Produce": [(WRITE, TOPIC), (WRITE, TRANSACTION)],
    "Fetch": [(READ, TOPIC)],
    "ShareFetch": [(READ, GROUP), (READ, TOPIC)],
}
#: Entries that match a resource of this name.
MATCHING = {
    "literal": [(LITERAL, NAME)],
    "prefixed": [(PREFIXED, "orders-")],
    "wildcard": [(LITERAL, "*")],
    "all": [(LITERAL, NAME), (PREFIXED, "orders-"), (PREFIXED, "o"), (LITERAL, "*")],
    "none": [],
}


def entry(
    kind: ResourceType,
    pattern: PatternType,
    name: str,
    operation: Operation = READ,
    *,
    principal: str = ALICE,
    host: str = "*",
) -> Acl:
    return Acl(kind, name, pattern, principal, host, operation, Permission.ALLOW)


def of_others(count: int) -> Iterator[Acl]:
    """Entries of other users and resources of the same types. The lengths of their prefixes are
    those of the names in `MATCHING`."""
    for n in range(count):
        kind = (TOPIC, GROUP, TRANSACTION)[n % 3]
        if n % 4 == 0:
            # Seven letters, as `orders-`, and one, as `o`.
            name = f"{n:07}" if n % 8 else chr(0x4E00 + n)
            yield entry(kind, PREFIXED, name, WRITE, principal=f"User:{n}")
        else:
            host = f"10.1.{n >> 8}.{n & 255}" if n % 2 else "*"
            yield entry(kind, LITERAL, f"topic-{n}", READ, principal=f"User:{n}", host=host)


class Counting(dict[Any, Any]):
    """A dictionary that counts what is looked up in it."""

    lookups = 0

    def get(self, key: Any, default: Any = None) -> Any:
        Counting.lookups += 1
        return super().get(key, default)

    def __getitem__(self, key: Any) -> Any:
        Counting.lookups += 1
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            Counting.lookups += 1
            yield key

    def items(self) -> Any:
        return ((key, dict.__getitem__(self, key)) for key in self)

    def values(self) -> Any:
        return (dict.__getitem__(self, key) for key in self)


def counted(acls: Iterable[Acl]) -> Authorizer:
    """Return an authorizer with these entries, whose dictionaries count."""
    found = Authorizer()
    found.change(acls)
    _count_in(found)
    return found


def _count_in(holder: Any) -> None:
    for name, value in list(vars(holder).items()):
        setattr(holder, name, _counting(value))


def _counting(value: Any) -> Any:
    if type(value).__module__ == authorizer.__name__:
        for name in value.__slots__:
            setattr(value, name, _counting(getattr(value, name)))
    elif type(value) is dict:
        return Counting({key: _counting(inner) for key, inner in value.items()})
    return value


def work(call: Callable[[], object]) -> Counter[str]:
    """Return how often `call` calls each function, and looks up in a counting dictionary."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == authorizer.__file__:
            found[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            found[argument.__name__] += 1

    before = Counting.lookups
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    found["lookups"] = Counting.lookups - before
    return found


def ask(authorizer: Authorizer, api: str) -> None:
    for operation, kind in CHECKS[api]:
        authorizer.is_allowed(ALICE, HOST, operation, kind, NAME)


def work_of(side: Authorizer, api: str) -> Counter[str]:
    return work(lambda: ask(side, api))


@pytest.mark.parametrize("patterns", MATCHING)
def test_a_check_costs_the_same_with_thousands_of_entries(patterns: str) -> None:
    """The first check of a resource, and each further one."""
    own = [
        entry(kind, pattern, name, operation)
        for pattern, name in MATCHING[patterns]
        for operation in (READ, WRITE)
        for kind in (TOPIC, GROUP, TRANSACTION)
    ]
    # A few entries of others, so that the lengths of prefixes are the same.
    few, many = counted([*own, *of_others(24)]), counted([*own, *of_others(MANY)])
    for api, checks in CHECKS.items():
        for side in (few, many):
            for operation, kind in checks:
                assert side.is_allowed(ALICE, HOST, operation, kind, NAME) is (patterns != "none")
            side.change(())
        first = work_of(few, api)
        assert first["lookups"] > len(checks)
        assert work_of(many, api) == first
        again = work_of(few, api)
        assert again["lookups"] == len(checks)
        assert work_of(many, api) == again


def test_a_first_check_looks_at_each_length_of_prefixes_once() -> None:
    """The only cost that entries of others add. It is bounded by the length of the name."""
    prefixes = [entry(TOPIC, PREFIXED, "x" * size) for size in range(1, 400)]
    found = counted(prefixes)
    assert work(lambda: ask(found, "Fetch"))["lookups"] < 400 + len(NAME) + 10
    assert not found.is_allowed(ALICE, HOST, READ, TOPIC, NAME)


@pytest.mark.parametrize("operation", [WRITE, DESCRIBE])
def test_a_check_of_any_resource_looks_at_the_users_entries(operation: Operation) -> None:
    """InitProducerId of an idempotent producer (KIP-679)."""
    own = [entry(TOPIC, LITERAL, NAME, WRITE), entry(TOPIC, PREFIXED, "orders-", WRITE)]

    def ask_any(side: Authorizer) -> None:
        assert side.is_any_allowed(ALICE, HOST, operation, TOPIC)

    few, many = counted([*own, *of_others(24)]), counted([*own, *of_others(MANY)])
    first = work(lambda: ask_any(few))
    assert work(lambda: ask_any(many)) == first
    again = work(lambda: ask_any(few))
    assert again["lookups"] == 1
    assert work(lambda: ask_any(many)) == again


def test_entries_of_many_users_for_one_resource() -> None:
    """Neither a check nor another user's entry visits them one by one."""
    sides = []
    for count in (10, MANY):
        users = [entry(TOPIC, LITERAL, NAME, principal=f"User:{n}") for n in range(count)]
        sides.append(counted([*users, entry(TOPIC, LITERAL, NAME)]))
    few, many = sides
    assert work(lambda: ask(many, "Fetch")) == work(lambda: ask(few, "Fetch"))
    another = [entry(TOPIC, LITERAL, NAME, WRITE, principal="User:one-more")]
    added = work(lambda: few.change(another))
    assert work(lambda: many.change(another)) == added
    assert many.is_allowed("User:one-more", HOST, WRITE, TOPIC, NAME)


# What is kept.


def size(side: Authorizer) -> int:
    """Return the number of items in all dictionaries of an authorizer."""
    return sum(len(value) for value in vars(side).values() if isinstance(value, dict))


def test_decisions_are_dropped_when_entries_change() -> None:
    side = Authorizer()
    acl = entry(TOPIC, LITERAL, NAME)
    sizes = []
    for added, removed in ([acl], []), ([], [acl]), ([acl], []):
        side.change(added, removed)
        sizes.append(size(side))
        assert side.is_allowed(ALICE, HOST, READ, TOPIC, NAME) is bool(added)
        assert side.is_any_allowed(ALICE, HOST, READ, TOPIC) is bool(added)
        assert size(side) >= sizes[-1] + 2
    assert sizes[2] == sizes[0] > sizes[1]


def test_kept_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many names, users and hosts there are."""
    assert DECISIONS_MAX <= 100_000
    monkeypatch.setattr(authorizer, "DECISIONS_MAX", 50)
    side = Authorizer()
    side.change([entry(TOPIC, LITERAL, "n-7")])
    before = size(side)
    for n in range(1000):
        assert side.is_allowed(ALICE, HOST, READ, TOPIC, f"n-{n}") is (n == 7)
        side.is_any_allowed(f"User:{n}", f"10.0.0.{n}", READ, TOPIC)
        assert size(side) <= before + 2 * 50
    assert size(side) > before


@pytest.mark.parametrize("length", [NAME_SIZE_MAX, NAME_SIZE_MAX + 1, 30_000])
def test_decisions_on_long_names_are_not_kept(length: int) -> None:
    """Requests name groups and topics of up to 32 KiB before anything checks them. 100,000 of these
    would take 3 GB."""
    side = Authorizer()
    side.change([entry(GROUP, PREFIXED, "g")])
    before = size(side)
    for _ in range(2):
        assert side.is_allowed(ALICE, HOST, READ, GROUP, "g" * length)
    assert size(side) - before == (length == NAME_SIZE_MAX)

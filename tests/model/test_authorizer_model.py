"""The authorizer's index against a naive reading of the rules, over random entries.

The naive model visits all entries for each question. The same entries and questions go to Kafka's
StandardAuthorizer in `tests/compat/oracles/test_authorizer.py`.
"""

from __future__ import annotations

import ipaddress
import random
from typing import TYPE_CHECKING

from acl_material import Material, Question
from shoal.security.acls import Acl, Operation, PatternType, Permission
from shoal.security.authorizer import EVERYTHING, AllowAllAuthorizer, Authorizer, canonicalize_host

if TYPE_CHECKING:
    from collections.abc import Iterable

RUNS = 400
IMPLIES_DESCRIBE = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}


class NaiveAuthorizer:
    """The rules of StandardAuthorizer, one sentence each."""

    def __init__(self, acls: Iterable[Acl], super_users: Iterable[str], allow_if_no_acl: bool):
        self.acls = list(acls)
        self.super_users = set(super_users)
        self.allow_if_no_acl = allow_if_no_acl

    def allows(self, question: Question) -> bool:
        if question.principal in self.super_users:
            return True
        of_resource = [
            acl
            for acl in self.acls
            if acl.resource_type == question.resource_type and covers(acl, question.name)
        ]
        if not of_resource:
            return self.allow_if_no_acl
        of_requester = [acl for acl in of_resource if is_for(acl, question)]
        if any(denies(acl, question.operation) for acl in of_requester):
            return False
        return any(permits(acl, question.operation) for acl in of_requester)

    def allows_any(self, question: Question) -> bool:
        """KIP-679: an entry must name the operation or ALL, and no DENY entry may cover it."""
        if self.allows(question._replace(name="hardcode")):
            return True
        mine = [
            acl
            for acl in self.acls
            if acl.resource_type == question.resource_type and is_for(acl, question)
        ]
        denied = [acl for acl in mine if denies(acl, question.operation)]
        if any(is_wildcard(acl) for acl in denied):
            return False
        return any(
            permits(acl, question.operation)
            and (is_wildcard(acl) or not any(dominates(deny, acl) for deny in denied))
            for acl in mine
        )


def covers(acl: Acl, name: str) -> bool:
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, "*")


def is_wildcard(acl: Acl) -> bool:
    return acl.pattern_type == PatternType.LITERAL and acl.resource_name == "*"


def dominates(deny: Acl, allow: Acl) -> bool:
    """Whether a DENY entry covers all that an ALLOW entry names."""
    if deny.pattern_type == PatternType.PREFIXED:
        return allow.resource_name.startswith(deny.resource_name)
    both_literal = allow.pattern_type == PatternType.LITERAL
    return both_literal and allow.resource_name == deny.resource_name


def is_for(acl: Acl, question: Question) -> bool:
    return acl.principal in (question.principal, "User:*") and is_from(acl.host, question.host)


def is_from(named: str, host: str) -> bool:
    """Whether a host is the named one, or in the named network, bit by bit."""
    if "/" not in named:
        return named == "*" or canonicalize_host(named) == canonicalize_host(host)
    start, _, length = named.partition("/")
    client = ipaddress.ip_address(canonicalize_host(host))
    try:
        first = ipaddress.ip_address(start)
    except ValueError:
        return False
    dropped = first.max_prefixlen - int(length)
    return first.version == client.version and int(first) >> dropped == int(client) >> dropped


def denies(acl: Acl, operation: Operation) -> bool:
    return acl.permission == Permission.DENY and acl.operation in (operation, Operation.ALL)


def permits(acl: Acl, operation: Operation) -> bool:
    if acl.permission != Permission.ALLOW:
        return False
    if acl.operation in (operation, Operation.ALL):
        return True
    if operation == Operation.DESCRIBE:
        return acl.operation in IMPLIES_DESCRIBE
    return operation == Operation.DESCRIBE_CONFIGS and acl.operation == Operation.ALTER_CONFIGS


def test_the_index_agrees_with_the_rules(seed: int) -> None:
    rng = random.Random(seed)
    allowed = 0
    for _ in range(RUNS):
        material = Material(rng)
        acls = material.acls(rng.randrange(10))
        default = rng.random() < 0.3
        naive = NaiveAuthorizer(acls, material.super_users, default)
        index = Authorizer(material.super_users, allow_if_no_acl=default)
        index.change(acls)
        for question in material.questions(30):
            expected = naive.allows(question)
            host = canonicalize_host(question.host)
            asked = question._replace(host=host)
            assert index.is_allowed(*asked) is expected, (acls, question)
            bits = index.get_allowed_bits(
                question.principal, host, question.resource_type, question.name
            )
            assert bool(bits >> question.operation & 1) is expected
            rule = index.explain(*asked)
            assert rule.allowed is expected, (acls, question, rule)
            assert rule.acl is None or rule.acl in acls
            allowed += expected
    assert allowed > RUNS


def test_an_operation_on_any_resource(seed: int) -> None:
    rng = random.Random(seed)
    allowed = 0
    for _ in range(RUNS):
        material = Material(rng)
        acls = material.acls(rng.randrange(8))
        naive = NaiveAuthorizer(acls, material.super_users, allow_if_no_acl=False)
        index = Authorizer(material.super_users)
        index.change(acls)
        for question in material.questions(20):
            if question.operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
                continue  # Kafka ignores implied operations here, and requests need WRITE alone.
            expected = naive.allows_any(question)
            host = canonicalize_host(question.host)
            _, _, operation, resource_type, _ = question
            found = index.is_any_allowed(question.principal, host, operation, resource_type)
            assert found is expected, (acls, question)
            allowed += expected
    assert allowed > RUNS


def test_changes_leave_the_index_that_their_result_has(seed: int) -> None:
    """Entries come and go, some of them stored twice under two ids."""
    rng = random.Random(seed)
    material = Material(rng)
    changed, stored = Authorizer(), [material.acl() for _ in range(5)]
    changed.change(stored)
    for _ in range(RUNS):
        removed = rng.sample(stored, rng.randrange(min(4, len(stored) + 1)))
        for acl in removed:
            stored.remove(acl)
        added = material.acls(rng.randrange(3)) + rng.sample(stored, min(1, len(stored)))
        stored += added
        changed.change(added, removed)
        naive = NaiveAuthorizer(stored, (), allow_if_no_acl=False)
        for question in material.questions(10):
            asked = question._replace(host=canonicalize_host(question.host))
            assert changed.is_allowed(*asked) is naive.allows(question), (stored, question)
            assert changed.explain(*asked).allowed is naive.allows(question)


def test_without_an_authorizer_all_is_allowed(seed: int) -> None:
    question = Material(random.Random(seed)).question()
    assert AllowAllAuthorizer().is_allowed(*question)
    assert AllowAllAuthorizer().get_allowed_bits(*question[:2], *question[3:]) == EVERYTHING
    assert AllowAllAuthorizer().is_any_allowed(*question[:4])

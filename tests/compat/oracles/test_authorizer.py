"""Shoal's authorizer and Kafka's StandardAuthorizer decide alike, over random entries."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING

import pytest
from acl_material import Material
from shoal.security.acls import Operation
from shoal.security.authorizer import Authorizer, canonicalize_host
from support.kafka.java_classes import SOURCES
from support.kafka.kafka_tools import java

if TYPE_CHECKING:
    from shoal.security.acls import Acl

pytestmark = pytest.mark.java

SOURCE = SOURCES / "AuthorizerOracle.java"
RUNS, ACLS_MAX, QUESTIONS = 400, 14, 80


def _distinct(acls: list[Acl]) -> list[Acl]:
    """Drop entries that differ only in the spelling of their host. Kafka refuses to store one entry
    under two ids."""
    return list({acl._replace(host=canonicalize_host(acl.host)): acl for acl in acls}.values())


def _line(*words: object) -> str:
    return "\t".join(str(int(w)) if isinstance(w, int) else str(w) for w in words)


def _acl(acl: Acl) -> str:
    return _line("acl", *acl)


@pytest.mark.nightly
def test_both_authorizers_decide_alike(seed: int) -> None:
    rng = random.Random(seed)
    lines: list[str] = []
    expected: list[tuple[bool, object, list[Acl]]] = []
    for _ in range(RUNS):
        material = Material(rng)
        acls = _distinct(material.acls(rng.randrange(ACLS_MAX)))
        default = rng.random() < 0.3
        ours = Authorizer(material.super_users, allow_if_no_acl=default)
        ours.change(acls)
        lines.append(_line("new", ";".join(material.super_users), str(default).lower()))
        lines += map(_acl, acls)
        for question in material.questions(QUESTIONS):
            principal, host, operation, kind, _ = question
            canonical = canonicalize_host(host)
            lines.append(_line("ask", *question))
            allowed = ours.is_allowed(*question._replace(host=canonical))
            expected.append((allowed, question, acls))
            if operation not in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS):
                lines.append(_line("any", *question[:4]))
                allowed = ours.is_any_allowed(principal, canonical, operation, kind)
                expected.append((allowed, ("any", *question[:4]), acls))
    done = subprocess.run(
        java(str(SOURCE), heap="384m"),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.split()
    assert len(answers) == len(expected)
    for answer, (allowed, asked, acls) in zip(answers, expected, strict=True):
        assert (answer == "1") is allowed, (asked, acls)
    assert 0.1 < sum(allowed for allowed, _, _ in expected) / len(expected) < 0.9

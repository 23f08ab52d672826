"""Names of subjects and their mapping, compared with Java and with Kafka's own mapper."""

from __future__ import annotations

import base64
import random
import subprocess

import pytest
from shoal.security import distinguished_names
from shoal.security.principal_mapping import NoMatchingRule, PrincipalMapper
from support.kafka.java_classes import SOURCES
from support.kafka.kafka_tools import RUN_TIMEOUT_S, java
from support.runs.seeding import SEED

pytestmark = pytest.mark.java

SOURCE = SOURCES / "Principals.java"
OIDS = {
    "CN": b"\x55\x04\x03",
    "serialNumber": b"\x55\x04\x05",
    "C": b"\x55\x04\x06",
    "L": b"\x55\x04\x07",
    "ST": b"\x55\x04\x08",
    "STREET": b"\x55\x04\x09",
    "O": b"\x55\x04\x0a",
    "OU": b"\x55\x04\x0b",
    "title": b"\x55\x04\x0c",
    "DC": b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19",
    "UID": b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01",
    "emailAddress": b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01",
    "large": b"\x88\x37\x8f\xff\xff\x7f\x01",
}
#: The tag of each kind of value, and its encoding. An INTEGER is no string.
TAGS = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "latin-1",
    0x1E: "utf-16-be",
    0x02: "",
    0x04: "",
    0x1A: "ascii",
    0x1C: "utf-32-be",
}
VALUES = [
    "alice",
    "Doe, John",
    'the "quoted" one',
    "a+b=c<d>e;f#g\\h",
    "#starts with a sharp",
    " leading and trailing ",
    "  ",
    " ",
    "",
    "\r\nlines\r",
    "tab\tand\x00null",
    "Größe",
    "日本語",
    "Ελληνικά, кириллица",
    "emoji 🦊",
    "a  b",
    "\u00a0no break\u2028",
    "*.example.com",
    "x" * 300,
]


def element(tag: int, data: bytes) -> bytes:
    size = len(data)
    if size < 128:
        return bytes([tag, size]) + data
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + data


def attribute(type: str, value: str, tag: int) -> bytes:
    data = value.encode(TAGS[tag], "replace") if TAGS[tag] else (value or "0").encode()
    return element(0x30, element(0x06, OIDS[type]) + element(tag, data))


def drawn_name(draw: random.Random) -> bytes:
    relative = []
    for _ in range(draw.choice([0, 1, 1, 2, 3, 6])):
        attributes = [
            attribute(
                draw.choice(sorted(OIDS)), drawn_value(draw), draw.choice([*TAGS, 0x0C, 0x13])
            )
            for _ in range(draw.choice([1, 1, 1, 2, 3]))
        ]
        relative.append(element(0x31, b"".join(attributes)))
    return element(0x30, b"".join(relative))


def drawn_value(draw: random.Random) -> str:
    if draw.random() < 0.5:
        return draw.choice(VALUES)
    letters = ' ,+"\\<>;=#abÄ語\r\n\0/'
    return "".join(draw.choice(letters) for _ in range(draw.randrange(8)))


def answers(lines: list[str]) -> list[str | None]:
    """What Java answers to each line; None for an error."""
    done = subprocess.run(
        java(str(SOURCE)),
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    found = done.stdout.splitlines()
    assert len(found) == len(lines), done.stderr
    return [base64.b64decode(a[1:]).decode() if a.startswith("=") else None for a in found]


def word(data: bytes | str) -> str:
    data = data if isinstance(data, bytes) else data.encode()
    return "=" + base64.b64encode(data).decode()


def test_names_are_written_as_by_java() -> None:
    draw = random.Random(SEED)
    names = [drawn_name(draw) for _ in range(3000)]
    names += [
        element(0x30, element(0x31, attribute(type, value, tag)))
        for type in OIDS
        for value in VALUES
        for tag in TAGS
    ]
    compared = 0
    for name, theirs in zip(names, answers([f"name {word(name)}" for name in names]), strict=True):
        if theirs is not None:  # Java refuses some values of wrong types.
            assert distinguished_names.format_name(name) == theirs, name.hex()
            compared += 1
    assert compared > len(names) // 2


RULES = [
    "DEFAULT",
    "",
    "RULE:^CN=(.*?),.*$/$1/",
    "RULE:^CN=(.*?),.*$/$1/L",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    "RULE:^CN=(.*?), *OU=(.*?).*$/$1@$2/U,DEFAULT",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,RULE:^cn=(.*?),ou=(.*?)$/$1@$2/,DEFAULT",
    "RULE:(.*)/X$1/",
    "RULE:CN=([^,]*)/$1@$2@$12@$0/",
    "RULE:CN=([^,]*)/$1\\/$1/",
    "RULE:CN=([^,]*)/a\\$1b/",
    "RULE:(?<who>CN=[^,]*).*/${who}/",
    "RULE:.*/constant/,DEFAULT",
    "RULE:.*/$1/",
    "RULE:.*/a$/",
    "RULE:^OU=.*$/no/",
    "RULE:CN=(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k).*/$11-$12-$1-$10-$99/",
    "RULE:CN=(x)?alice.*/<$1>/",
    "RULE:CN=alice/bob/X",
    "RULE:CN=alice",
    "INVALID",
    "DEFAULT, RULE:x/y/ ,",
    ",,DEFAULT",
    "RULE:CN=alice.*/a,b/,DEFAULT",
    "RULE:.*/${none}/",
    "RULE:CN=(ALICE|alice).*/Ünïcode $1/U",
    "RULE:[^=]*=([^,]*),.*/$1/L ,  DEFAULT",
    "DEFAULT/x",
    "RULE:(a/y/,DEFAULT",
]
SUBJECTS = [
    "CN=alice",
    "CN=alice,OU=Eng",
    "CN=Alice,OU=ServiceUsers,O=Org,L=City,ST=State,C=DE",
    "OU=only",
    "",
    "CN=abcdefghijkl,OU=x",
    "CN=a\\,b\\\\c,O=x",
    "CN=Größe,O=日本",
]


def test_names_are_mapped_as_by_kafka() -> None:
    pairs = [(rules, subject) for rules in RULES for subject in SUBJECTS]
    theirs = answers([f"map {word(rules)} {word(subject)}" for rules, subject in pairs])
    wrong = []
    for (rules, subject), expected in zip(pairs, theirs, strict=True):
        try:
            ours: str | None = PrincipalMapper(rules).map_subject(subject)
        except (NoMatchingRule, ValueError):
            ours = None
        if ours != expected:
            wrong.append((rules, subject, expected, ours))
    assert not wrong
    assert any(name is None for name in theirs)

"""JAAS configs: Shoal reads the same login modules and options as Kafka's own parser."""

from __future__ import annotations

import base64
import random
import subprocess

import pytest
from shoal.security.jaas import JaasError, LoginModule, parse
from support.kafka.java_classes import SOURCES
from support.kafka.kafka_tools import java

SOURCE = SOURCES / "Jaas.java"
DRAWN = 4000
PIECES = (
    "M",
    "required",
    "optional",
    "x.Y",
    "a",
    "user_b",
    "=",
    "=",
    ";",
    '"',
    "'",
    "\\",
    "\\n",
    "\\101",
    "\\8",
    " ",
    "\n",
    "\t",
    "//",
    "/*",
    "*/",
    "/",
    "-",
    "_",
    "$",
    ".",
    "1",
    "42",
    "é",
    "中",
    "{",
    ",",
    '"v w"',
    "'z'",
    "\x7f",
    "\xa0",
    "=c",
    '="d"',
    " e=f",
)
FIXED = (
    "",
    "M required;",
    'M required a="b";',
    "M required a=b c='d' ;",
    "M Required a=b; N required;",
    'M required a="b',
    'M required a="b\nc";',
    'M required a="b\\\nc";',
    "M required a=b",
    "M a=b;",
    "M required a=1;",
    "M required a=b1.-;",
    "M required a=-b;",
    "M required 1=b;",
    '"M" required;',
    "M 'required';",
    'M required "a"="b";',
    "M required a=b // c\n;",
    "M required a=b / c\n;",
    "M required a=b /* c */ d=e;",
    "M required a=b /* c",
    "M required a = b;",
    "M required a==b;",
    'M required a="\\101\\7\\18\\377\\477\\t\\x\\"";',
    "M required a=b,c=d;",
    "; required;",
    "M required é=中;",
    'M required a="" b="";',
    "M required\na=b\n;\n",
    "M required a=b;;",
    "M required /\n;",
    "M required a=b/\n;\n;",
    "M required a=b; /",
)


def kafkas(texts: list[str]) -> list[LoginModule | None]:
    """Return what Kafka reads, or None for an error."""
    lines = "".join(base64.b64encode(text.encode()).decode() + "\n" for text in texts)
    done = subprocess.run(
        java(str(SOURCE)), input=lines, capture_output=True, text=True, timeout=180, check=True
    )
    return [module(line) for line in done.stdout.splitlines()]


def module(line: str) -> LoginModule | None:
    if line == "error":
        return None
    name, flag, *pairs = line.split()
    options = {}
    for pair in pairs:
        option, _, value = pair.partition(":")
        options[word(option)] = word(value)
    return LoginModule(word(name), flag, options)


def word(text: str) -> str:
    return "(null)" if text == "-" else base64.b64decode(text[1:]).decode()


def ours(text: str) -> LoginModule | None:
    try:
        return parse(text)
    except JaasError:
        return None


@pytest.mark.java
def test_the_same_modules_and_options(seed: int) -> None:
    drawn = random.Random(seed)
    texts = list(FIXED)
    for n in range(DRAWN):
        body = "".join(drawn.choices(PIECES, k=drawn.randrange(1, 9)))
        texts.append(f"M required {body};" if n % 2 else body)
    expected = kafkas(texts)
    assert len(expected) == len(texts)
    differing = []
    for text, theirs in zip(texts, expected, strict=True):
        found = ours(text)
        # Kafka takes a number for an option without a name.
        is_nameless = theirs is not None and "(null)" in (theirs.name, *theirs.options)
        if found != (None if is_nameless else theirs):
            differing.append((text, found, theirs))
    assert not differing, differing[:5]
    assert sum(e is not None for e in expected) > 50

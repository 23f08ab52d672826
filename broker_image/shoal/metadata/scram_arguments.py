"""The first users of a cluster, in the format of `kafka-storage format --add-scram` (KIP-900).

`SCRAM-SHA-512=[name=alice,password=secret]`, with `iterations=`, and `salt=` in base64. In place of
the password there may be `saltedpassword=` in base64, which needs the salt. Unlike Kafka's, a value
in double quotes may contain commas. Errors never repeat a value that may be secret.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from typing import TYPE_CHECKING

from shoal.metadata.scram_credentials import ITERATIONS_MAX, build_scram_record
from shoal.security import scram
from shoal.security.scram import ITERATIONS_MIN, SCRAM_MECHANISMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.metadata.records import MetadataRecord

_SALT_SIZE = 24
_NAMES = ("name", "password", "saltedpassword", "salt", "iterations")
_ARGUMENT = re.compile(r"(?P<mechanism>[^=\[]*)=\[(?P<components>.*)\]", re.DOTALL)
_COMPONENT = re.compile(r'([^=,]*)=("[^"]*"(?=,|$)|[^,]*)(?:,|$)')


class InvalidScramArgument(Exception):
    """A sentence about an argument that is not in the format."""


def parse(argument: str, random_bytes: Callable[[int], bytes]) -> MetadataRecord:
    """Return the record of the user in an argument. Raises `InvalidScramArgument`."""
    match = _ARGUMENT.fullmatch(argument.strip())
    if match is None:
        raise InvalidScramArgument("It must be of the form MECHANISM=[name=…,password=…].")
    mechanism = SCRAM_MECHANISMS.get(match["mechanism"])
    if mechanism is None:
        raise InvalidScramArgument(
            f"The mechanism must be {' or '.join(SCRAM_MECHANISMS)}, not {match['mechanism']}."
        )
    values = _parse_components(match["components"])
    name = values.get("name")
    if not name:
        raise InvalidScramArgument("The user has no name: add name=….")
    iterations = _parse_iterations(values.get("iterations"))
    salt = _decode_base64(values, "salt") or random_bytes(_SALT_SIZE)
    if "password" in values:
        if not values["password"]:
            raise InvalidScramArgument("The password is empty.")
        credential = scram.build_credential(mechanism, values["password"], salt, iterations)
    elif "salt" not in values:
        raise InvalidScramArgument("Give the password, or saltedpassword and salt.")
    else:
        salted = _decode_base64(values, "saltedpassword")
        credential = scram.from_salted_password(mechanism, salted, salt, iterations)
    return build_scram_record(name, mechanism.number, credential)


def _parse_components(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _COMPONENT.match(text, at)
        if match is None:
            raise InvalidScramArgument(
                f"Between the brackets stand {', '.join(f'{name}=…' for name in _NAMES)}, separated"
                " by commas. Put a value with a comma in double quotes."
            )
        name, value = match[1].strip(), match[2]
        if name not in _NAMES:
            raise InvalidScramArgument(f"There is no {name}=. There are {', '.join(_NAMES)}.")
        if name in values:
            raise InvalidScramArgument(f"{name}= is listed twice.")
        is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
        values[name] = value[1:-1] if is_quoted else value
        at = match.end()
    return values


def _parse_iterations(text: str | None) -> int:
    if text is None:
        return ITERATIONS_MIN
    if not text.isdecimal() or not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise InvalidScramArgument(
            f"iterations= must be a number from {ITERATIONS_MIN} to {ITERATIONS_MAX}."
        )
    return int(text)


def _decode_base64(values: dict[str, str], name: str) -> bytes:
    """Return the decoded value; empty if there is none. Raises `InvalidScramArgument`."""
    if name not in values:
        return b""
    try:
        decoded = b64decode(values[name], validate=True)
    except binascii.Error:
        decoded = b""
    if not decoded:
        raise InvalidScramArgument(f"{name}= must be bytes in base64.")
    return decoded

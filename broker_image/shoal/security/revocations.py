"""Certificates that are refused by their subject, as `shoal.ssl.revoked.subjects` has them.

An entry revokes all certificates of one subject that are older than a time, so that the serial
numbers of its certificates need not be known. A user of the same name that is made again gets a
newer certificate, which is accepted.

The text of an entry is `FROM/UNTIL/SUBJECT`, with two times in UTC (`2026-11-25T21:50:00Z`) and the
subject as Java writes it (RFC 2253). Entries stand in a list with commas, so a comma in the subject
is written as %2C, and a percent sign as %25.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENTRY = re.compile(r"([^/]+)/([^/]+)/(\w.*=.+)", re.DOTALL)
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_ESCAPES = {"%25": "%", "%2C": ","}


class Revocation(NamedTuple):
    """Certificates of `subject` that are not valid before a time earlier than `issued_before` are
    refused. All of them have expired at `valid_until`, so that the entry can be removed."""

    subject: str
    issued_before: datetime
    valid_until: datetime

    @classmethod
    def parse(cls, text: str) -> Revocation:
        """Return the entry that a text stands for. Raises `ValueError`."""
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form FROM/UNTIL/SUBJECT")
        issued_before, valid_until = (
            datetime.strptime(time, _TIME).replace(tzinfo=UTC) for time in match.groups()[:2]
        )
        subject = re.sub("%25|%2C", lambda escape: _ESCAPES[escape[0]], match[3])
        return cls(subject, issued_before, valid_until)

    def __str__(self) -> str:
        subject = self.subject.replace("%", "%25").replace(",", "%2C")
        return f"{self.issued_before:{_TIME}}/{self.valid_until:{_TIME}}/{subject}"

    def is_revoked(self, not_valid_before: datetime) -> bool:
        """Whether a certificate of the subject with this begin of its validity is refused."""
        return not_valid_before < self.issued_before


def parse_by_subject(texts: Iterable[str]) -> dict[str, Revocation]:
    """Return the entries by subject; of several entries of one subject, the newest. Raises
    `ValueError`."""
    newest: dict[str, Revocation] = {}
    for revocation in map(Revocation.parse, texts):
        previous = newest.get(revocation.subject)
        if previous is None or previous.issued_before < revocation.issued_before:
            newest[revocation.subject] = revocation
    return newest

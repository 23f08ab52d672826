"""Entries of shoal.ssl.revoked.subjects, and logins by SCRAM that end with their credential."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shoal.metadata.config_tables.broker_configs import BROKER
from shoal.metadata.delta import MetadataDelta
from shoal.security import revocations
from shoal.security.revocations import Revocation
from shoal.security.sasl import LoginRefused
from shoal.security.scram import ScramCredential
from shoal.server.network.api import Peer
from shoal.server.network.scram_sessions import ScramSessions
from support.brokers.connections import LISTENER, Server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shoal.security.audit import AuditEntry

KEY = BROKER["shoal.ssl.revoked.subjects"]
DAY = datetime(2026, 6, 1, tzinfo=UTC)
YEAR = timedelta(days=365)
subjects = st.text(st.characters(exclude_categories=["Cs", "Z", "C"])).map(lambda n: f"CN=x{n}")
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(
    lambda t: t.replace(microsecond=0, tzinfo=UTC)
)


@given(st.lists(st.builds(Revocation, subjects, times, times), unique_by=lambda one: one.subject))
def test_entries_survive_the_config(entries: list[Revocation]) -> None:
    """Any subject, in a list with commas."""
    read = KEY.parse(",".join(map(str, entries)))
    assert revocations.parse_by_subject(read) == {one.subject: one for one in entries}


def test_the_newest_entry_of_a_subject_counts() -> None:
    old, new = (Revocation("CN=eve", day, DAY + YEAR) for day in (DAY, DAY + timedelta(days=1)))
    for entries in ([old, new], [new, old]):
        assert revocations.parse_by_subject(map(str, entries)) == {"CN=eve": new}


def test_which_certificates_are_revoked() -> None:
    entry = Revocation("CN=eve", DAY, DAY + YEAR)
    assert entry.is_revoked(DAY - timedelta(seconds=1))
    assert not entry.is_revoked(DAY)


@pytest.mark.parametrize(
    "text",
    ["", "CN=eve", "2026-06-01T00:00:00Z/CN=eve", "2026-06-01/2027-06-01/CN=eve", "a/b/eve"],
)
def test_texts_that_are_no_entries(text: str) -> None:
    with pytest.raises(ValueError, match=r"FROM/UNTIL/SUBJECT|does not match"):
        Revocation.parse(text)


class FakeConnection:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeAudit:
    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def note(self, entry: AuditEntry) -> None:
        self.entries.append(entry)


STORED = ScramCredential(b"salt", b"k", b"k", 4096)


class Scram:
    """Sessions of a server whose metadata has some users."""

    def __init__(self, *users: str) -> None:
        self.server, self.audit = Server(), FakeAudit()
        self.sessions = ScramSessions(self.server.node, self.server.cache, self.audit)  # type: ignore[arg-type]
        self.publish(users)

    def publish(self, users: Iterable[str], changed: Iterable[str] = ()) -> None:
        """Store these users' credentials for SCRAM-SHA-256; those of `changed` differ."""
        stored = {(user, 1): STORED for user in users}
        image = replace(self.server.cache.image, scram_credentials=stored)
        delta = MetadataDelta(scram_credentials=tuple((user, 1) for user in changed))
        self.server.cache.publish(image, delta)

    def log_in(self, user: str) -> tuple[FakeConnection, Peer]:
        connection = FakeConnection()
        peer = Peer("127.0.0.1", 1, LISTENER, f"User:{user}", "1")
        self.sessions.begin("SCRAM-SHA-256", user, connection, peer)
        return connection, peer


def test_a_credential_that_is_removed_during_a_login() -> None:
    async def main() -> None:
        with pytest.raises(LoginRefused, match="removed during the login"):
            Scram("bob").log_in("eve")

    asyncio.run(main())


def test_connections_that_are_closed_are_forgotten() -> None:
    async def main() -> None:
        scram = Scram("eve")
        (first, peer), (second, _) = scram.log_in("eve"), scram.log_in("eve")
        peer.closed_calls.run()
        scram.publish(["eve"], changed=["eve"])
        assert not second.closed
        scram.publish([], changed=["eve", "nobody"])
        assert (first.closed, second.closed) == (False, True)
        (entry,) = scram.audit.entries
        assert entry.values["connections"] == 1
        _, peer = Scram("eve").log_in("eve")
        peer.closed_calls.run()

    asyncio.run(main())

"""The audit log: lines that nobody can forge, and floods that are summed up."""

from __future__ import annotations

import asyncio
import io
import json
import sys

import pytest
from shoal.security import audit
from shoal.security.audit import INTERVAL_MS, LINES_MAX, SIMILAR_MAX, AuditEntry, AuditTrail, clean
from shoal.server import logs
from shoal.server.audit import AuditLogger
from shoal.server.config import resolve
from shoal.server.node import Node
from shoal.server.system import System
from support.runs.conditions import eventually_async


def failed(user: str = "alice", host: str = "10.0.0.1") -> AuditEntry:
    return audit.build_login_failure(
        listener="EXTERNAL", mechanism="PLAIN", user=user, host=host, reason="wrong password"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("alice", "alice"),
        ("zoë 中 🐟", "zoë 中 🐟"),
        ("a\nlogin failed user=bob", "a\\x0alogin failed user=bob"),
        ("a\r\t\0\x1b[31m\x7f", "a\\x0d\\x09\\x00\\x1b[31m\\x7f"),
        ("a\x85b\u2028c\u2029d", "a\\x85b\\u{2028}c\\u{2029}d"),
        ("a\u202eb\u200bc\ufeff", "a\\u{202e}b\\u{200b}c\\u{feff}"),
        ("a\\x0ab", "a\\\\x0ab"),
        ("\ud800", "\\u{d800}"),
        ("x" * 257, "x" * 256 + "… (257 characters)"),
        ("\n" * 300_000, "\\x0a" * 256 + "… (300000 characters)"),
    ],
)
def test_values_are_printable_and_short(text: str, shown: str) -> None:
    assert clean(text) == shown
    clean(text).encode()
    assert len(clean(text)) < 2600


def test_the_values_of_an_entry() -> None:
    assert failed("a\nb").values == {
        "listener": "EXTERNAL",
        "mechanism": "PLAIN",
        "user": "a\\x0ab",
        "host": "10.0.0.1",
        "reason": "wrong password",
        "reauthentication": "false",
    }


def test_similar_entries_are_summed_up() -> None:
    trail = AuditTrail()
    logged = [trail.note(failed(f"user{n}"), 1000 + n) for n in range(SIMILAR_MAX + 5)]
    assert logged == [True] * SIMILAR_MAX + [False] * 5
    assert trail.note(failed(host="10.0.0.2"), 1100)
    assert trail.due_ms == 1000 + INTERVAL_MS
    (summary,) = trail.summarize(trail.due_ms)
    assert summary == AuditEntry(
        "login failed",
        {
            "listener": "EXTERNAL",
            "mechanism": "PLAIN",
            "host": "10.0.0.1",
            "reason": "wrong password",
            "similar": 5,
        },
    )
    assert trail.due_ms is None
    assert trail.note(failed(), 1001 + INTERVAL_MS)
    assert trail.summarize(99_999_999) == []


def test_an_interval_without_summary_ends() -> None:
    trail = AuditTrail()
    for now_ms in (0, INTERVAL_MS, 2 * INTERVAL_MS):
        assert all(trail.note(failed(), now_ms) for _ in range(SIMILAR_MAX))
    assert trail.due_ms is None


def test_floods_from_many_addresses_are_bounded() -> None:
    trail = AuditTrail()
    hosts = [f"10.{n >> 8}.{n & 255}.1" for n in range(3 * LINES_MAX)]
    logged = sum(trail.note(failed(host=host), 0) for host in hosts)
    assert logged == LINES_MAX
    refusal = audit.build_refusal(
        principal="User:bob",
        host="h",
        listener="L",
        api="PRODUCE",
        operation="WRITE",
        resource="TOPIC",
        name="t",
    )
    assert not trail.note(refusal, 0)
    summaries = trail.summarize(INTERVAL_MS)
    assert [s.values["similar"] for s in summaries] == [2 * LINES_MAX, 1]
    assert [s.values["host"] for s in summaries] == ["others", "others"]


def test_changes_are_never_left_out() -> None:
    trail = AuditTrail()
    change = audit.build_change(
        principal="User:admin", host="h", api="CREATE_ACLS", description="an ACL"
    )
    assert all(trail.note(change, 0) for _ in range(5 * LINES_MAX))


def lines(
    json_lines: bool, level: str, *entries: AuditEntry, monkeypatch: pytest.MonkeyPatch
) -> str:
    async def main() -> None:
        node = Node(resolve({}, {}), asyncio.get_running_loop())
        log = AuditLogger(node)
        assert log.logs_successes == (level == "debug")
        for entry in entries:
            log.note(entry)
        log.close()
        node.timers.stop()

    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure(json=json_lines, level=level)
    asyncio.run(main())
    return out.getvalue()


def test_lines_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = failed('bob\n{"event": "forged"}\x1b[2K')
    text = lines(True, "info", *[entry] * (SIMILAR_MAX + 3), monkeypatch=monkeypatch)
    found = [json.loads(line) for line in text.splitlines()]
    assert len(found) == SIMILAR_MAX + 1
    assert {line["event"] for line in found} == {"login failed"}
    assert found[0]["user"] == 'bob\\x0a{"event": "forged"}\\x1b[2K'
    assert found[-1]["similar"] == 3
    assert found[0]["level"] == "warning"
    assert found[0]["audit"] is True


def test_the_summary_comes_at_the_end_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        system = System()
        # All entries belong to one interval, however long this machine stalls between them.
        now_ns = system.wall_ns()
        system.wall_ns = lambda: now_ns
        node = Node(resolve({}, {}), asyncio.get_running_loop(), system)
        log = AuditLogger(node)
        for _ in range(SIMILAR_MAX + 2):
            log.note(failed())
        await eventually_async(lambda: '"similar": 2' in out.getvalue())
        node.timers.stop()

    monkeypatch.setattr(audit, "INTERVAL_MS", 50)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    logs.configure(json=True, level="info")
    asyncio.run(main())


def test_lines_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    text = lines(False, "info", failed("bob\nforged user=x"), monkeypatch=monkeypatch)
    assert len(text.splitlines()) == 1
    assert "bob\\x0aforged" in text.replace("\\\\", "\\")
    assert "\x1b" not in text


def test_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        audit.build_login(listener="L", mechanism="PLAIN", principal="User:a", host="h"),
        audit.build_allowance(
            principal="User:a",
            host="h",
            listener="L",
            api="FETCH",
            operation="READ",
            resource="TOPIC",
            name="t",
        ),
        audit.build_change(principal="User:a", host="h", api="CREATE_ACLS", description="an ACL"),
    )
    for level, events in [
        ("info", [("security changed", "info")]),
        (
            "debug",
            [("logged in", "debug"), ("request allowed", "debug"), ("security changed", "info")],
        ),
    ]:
        text = lines(True, level, *entries, monkeypatch=monkeypatch)
        found = [json.loads(line) for line in text.splitlines()]
        assert [(line["event"], line["level"]) for line in found] == events

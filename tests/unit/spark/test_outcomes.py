"""Outcomes between a sink and the source, and the desired number of executors."""

from __future__ import annotations

import http.server
import os
import tempfile
import threading
from pathlib import Path

import pytest
from shoal_spark import outcome_files, scaling
from shoal_spark.options import get_outcomes_dir
from shoal_spark.outcome_files import Inbox, Outcome, OutcomeKind, parse_reason
from shoal_spark.ranges import OffsetRange
from shoal_spark.scaling import Executor, NumberUnavailable


def rejected(
    first: int, last: int, kind: OutcomeKind = OutcomeKind.REJECT, delay_ms: int = 0
) -> Outcome:
    return Outcome("t", 0, first, last, kind, delay_ms)


def test_neighbours_become_one_line(tmp_path: Path) -> None:
    path = outcome_files.write(str(tmp_path), [rejected(n, n) for n in (3, 1, 2, 9, 2)])
    assert path is not None
    assert len(path.read_text().splitlines()) == 2
    assert outcome_files.write(str(tmp_path), []) is None
    assert [p.suffix for p in tmp_path.iterdir()] == [".jsonl"], "only whole files have this name"


def test_rows_without_an_outcome_are_accepted(tmp_path: Path) -> None:
    outcome_files.write(str(tmp_path), [rejected(2, 3), rejected(5, 6, OutcomeKind.RELEASE, 100)])
    inbox = Inbox(str(tmp_path))
    inbox.poll()
    found = {
        (kind, delay): some
        for kind, delay, _, some in inbox.iterate_outcomes([OffsetRange("t", 0, 0, 9)])
    }
    assert found == {
        (OutcomeKind.REJECT, 0): [OffsetRange("t", 0, 2, 3)],
        (OutcomeKind.RELEASE, 100): [OffsetRange("t", 0, 5, 6)],
        (OutcomeKind.ACCEPT, 0): [
            OffsetRange("t", 0, 0, 1),
            OffsetRange("t", 0, 4, 4),
            OffsetRange("t", 0, 7, 9),
        ],
    }


def test_an_outcome_keeps_its_reason(tmp_path: Path) -> None:
    why = "ValueError: no amount"
    outcome_files.write(str(tmp_path), [rejected(0, 3)._replace(reason=why)])
    inbox = Inbox(str(tmp_path))
    inbox.poll()
    found = [reason for _, _, reason, _ in inbox.iterate_outcomes([OffsetRange("t", 0, 2, 5)])]
    assert found == [why, ""]


@pytest.mark.parametrize(
    ("text", "exception", "message"),
    [
        ("ValueError: no\namount: x", "ValueError", "no\namount: x"),
        ("app.errors.NoAmount: ", "app.errors.NoAmount", ""),
        ("busy: try later", "", "busy: try later"),
        ("No amount: 7", "", "No amount: 7"),
        ("odd", "", "odd"),
    ],
)
def test_a_reason_may_name_its_exception(text: str, exception: str, message: str) -> None:
    assert parse_reason(text)[:2] == (exception, message)


def test_the_later_file_counts_and_a_settled_one_is_removed(tmp_path: Path) -> None:
    first = outcome_files.write(str(tmp_path), [rejected(0, 5)])
    outcome_files.write(str(tmp_path), [rejected(4, 4, OutcomeKind.RELEASE)])
    inbox = Inbox(str(tmp_path))
    inbox.poll()
    assert [
        (kind, some) for kind, _, _, some in inbox.iterate_outcomes([OffsetRange("t", 0, 4, 5)])
    ] == [
        (OutcomeKind.RELEASE, [OffsetRange("t", 0, 4, 4)]),
        (OutcomeKind.REJECT, [OffsetRange("t", 0, 5, 5)]),
    ]
    inbox.drop_settled([OffsetRange("t", 0, 4, 5)])
    assert list(tmp_path.iterdir()) == [first], "the rest of the first file is not settled yet"
    inbox.drop_settled([OffsetRange("t", 0, 0, 3)])
    assert not list(tmp_path.iterdir())


def test_a_new_reader_finds_what_the_old_one_left(tmp_path: Path) -> None:
    outcome_files.write(str(tmp_path), [rejected(0, 5)])
    for _ in range(2):
        inbox = Inbox(str(tmp_path))
        inbox.poll()
        assert [kind for kind, _, _, _ in inbox.iterate_outcomes([OffsetRange("t", 0, 0, 5)])] == [
            OutcomeKind.REJECT
        ]


def test_outcomes_that_no_reader_fetched_for_a_week_are_removed(tmp_path: Path) -> None:
    path = outcome_files.write(str(tmp_path), [rejected(0, 5)])
    assert path is not None
    long_ago = path.stat().st_mtime - outcome_files.AGE_S_MAX - 1
    os.utime(path, (long_ago, long_ago))
    inbox = Inbox(str(tmp_path))
    inbox.poll()
    assert [kind for kind, _, _, _ in inbox.iterate_outcomes([OffsetRange("t", 0, 0, 5)])] == [
        OutcomeKind.ACCEPT
    ]
    assert not path.exists()


@pytest.mark.parametrize("foreign", ["directory", "folder"])
def test_a_directory_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    """Everybody may create the default one first, and put outcomes into it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    me = os.getuid()
    if me:  # Only root can give a folder away; for others, this user becomes another one.
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    directory = Path(get_outcomes_dir("b:1", "g"))
    directory.mkdir(parents=True)
    if not me:
        os.chown(directory if foreign == "directory" else directory.parent, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        outcome_files.write(str(directory), [rejected(0, 1)])
    with pytest.raises(PermissionError, match="belongs to another user"):
        Inbox(str(directory)).poll()
    assert not list(directory.iterdir())


def test_the_default_directory_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = Path(get_outcomes_dir("b:1", "g"))
    outcome_files.write(str(directory), [rejected(0, 1)])
    modes = [place.stat().st_mode & 0o777 for place in (directory.parent, directory)]
    assert modes == [0o700, 0o700]


@pytest.mark.parametrize(("text", "count"), [("3", 3), ('{"desiredReplicas": 0, "lag": 5}', 0)])
def test_a_number_is_read_from_a_file(tmp_path: Path, text: str, count: int) -> None:
    path = tmp_path / "executors"
    path.write_text(text)
    wanted = scaling.find_published({scaling.FILE: str(path)})
    assert wanted is not None
    assert wanted() == count


@pytest.mark.parametrize("text", ["", "many", "-1", "{}", "[1]", '{"desiredReplicas": 100000}'])
def test_nonsense_is_no_number(text: str) -> None:
    with pytest.raises(NumberUnavailable):
        scaling.parse(text)


def test_a_number_is_read_over_http() -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # 503: the operator has no lag, and repeats the number.
            known = {"/scale/ns/images": 200, "/scale/ns/unknown": 503}
            self.send_response(known.get(self.path, 404))
            self.end_headers()
            self.wfile.write(b'{"lag": 9, "inFlight": 1, "desiredReplicas": 6}')

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/scale/ns"
    wanted = scaling.find_published({scaling.URL: f"{url}/images"})
    assert wanted is not None
    assert wanted() == 6
    unknown = scaling.find_published({scaling.URL: f"{url}/unknown"})
    assert unknown is not None
    assert unknown() == 6
    missing = scaling.find_published({scaling.URL: f"{url}/other"})
    assert missing is not None
    with pytest.raises(NumberUnavailable, match="404"):
        missing()
    server.shutdown()
    server.server_close()
    with pytest.raises(NumberUnavailable):
        wanted()


def test_a_missing_number_is_none() -> None:
    assert scaling.find_published({}) is None


def test_idle_and_young_executors_go_first() -> None:
    some = [Executor("1", 0), Executor("2", 3), Executor("10", 0), Executor("3", 1)]
    assert scaling.choose_superfluous(some, 2) == ["10", "1"]
    assert scaling.choose_superfluous(some, 0) == ["10", "1", "3", "2"]
    assert scaling.choose_superfluous(some, 9) == []

"""Outcomes between a sink and the source, and the desired number of executors."""

from __future__ import annotations

import http.server
import os
import tempfile
import threading
from pathlib import Path

import pytest
from shoal_spark import outcome_files, scaling
from shoal_spark.options import outcomes_dir
from shoal_spark.outcome_files import Inbox, Kind, Outcome
from shoal_spark.ranges import Range
from shoal_spark.scaling import Executor, Unknown


def rejected(first: int, last: int, kind: Kind = Kind.REJECT, delay_ms: int = 0) -> Outcome:
    return Outcome("t", 0, first, last, kind, delay_ms)


def test_neighbours_become_one_line(tmp_path: Path) -> None:
    path = outcome_files.write(str(tmp_path), [rejected(n, n) for n in (3, 1, 2, 9, 2)])
    assert path is not None
    assert len(path.read_text().splitlines()) == 2
    assert outcome_files.write(str(tmp_path), []) is None
    assert [p.suffix for p in tmp_path.iterdir()] == [".jsonl"], "only whole files have this name"


def test_rows_without_an_outcome_are_accepted(tmp_path: Path) -> None:
    outcome_files.write(str(tmp_path), [rejected(2, 3), rejected(5, 6, Kind.RELEASE, 100)])
    inbox = Inbox(str(tmp_path))
    inbox.look()
    found = {(kind, delay): some for kind, delay, some in inbox.of([Range("t", 0, 0, 9)])}
    assert found == {
        (Kind.REJECT, 0): [Range("t", 0, 2, 3)],
        (Kind.RELEASE, 100): [Range("t", 0, 5, 6)],
        (Kind.ACCEPT, 0): [Range("t", 0, 0, 1), Range("t", 0, 4, 4), Range("t", 0, 7, 9)],
    }


def test_the_later_file_counts_and_a_settled_one_is_removed(tmp_path: Path) -> None:
    first = outcome_files.write(str(tmp_path), [rejected(0, 5)])
    outcome_files.write(str(tmp_path), [rejected(4, 4, Kind.RELEASE)])
    inbox = Inbox(str(tmp_path))
    inbox.look()
    assert [(kind, some) for kind, _, some in inbox.of([Range("t", 0, 4, 5)])] == [
        (Kind.RELEASE, [Range("t", 0, 4, 4)]),
        (Kind.REJECT, [Range("t", 0, 5, 5)]),
    ]
    inbox.settled([Range("t", 0, 4, 5)])
    assert list(tmp_path.iterdir()) == [first], "the rest of the first file is not settled yet"
    inbox.settled([Range("t", 0, 0, 3)])
    assert not list(tmp_path.iterdir())


def test_a_new_reader_finds_what_the_old_one_left(tmp_path: Path) -> None:
    outcome_files.write(str(tmp_path), [rejected(0, 5)])
    for _ in range(2):
        inbox = Inbox(str(tmp_path))
        inbox.look()
        assert [kind for kind, _, _ in inbox.of([Range("t", 0, 0, 5)])] == [Kind.REJECT]


def test_outcomes_that_no_reader_fetched_for_a_week_are_removed(tmp_path: Path) -> None:
    path = outcome_files.write(str(tmp_path), [rejected(0, 5)])
    assert path is not None
    long_ago = path.stat().st_mtime - outcome_files.AGE_S_MAX - 1
    os.utime(path, (long_ago, long_ago))
    inbox = Inbox(str(tmp_path))
    inbox.look()
    assert [kind for kind, _, _ in inbox.of([Range("t", 0, 0, 5)])] == [Kind.ACCEPT]
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
    directory = Path(outcomes_dir("b:1", "g"))
    directory.mkdir(parents=True)
    if not me:
        os.chown(directory if foreign == "directory" else directory.parent, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        outcome_files.write(str(directory), [rejected(0, 1)])
    with pytest.raises(PermissionError, match="belongs to another user"):
        Inbox(str(directory)).look()
    assert not list(directory.iterdir())


def test_the_default_directory_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = Path(outcomes_dir("b:1", "g"))
    outcome_files.write(str(directory), [rejected(0, 1)])
    modes = [place.stat().st_mode & 0o777 for place in (directory.parent, directory)]
    assert modes == [0o700, 0o700]


@pytest.mark.parametrize(("text", "count"), [("3", 3), ('{"desiredReplicas": 0, "lag": 5}', 0)])
def test_a_number_is_read_from_a_file(tmp_path: Path, text: str, count: int) -> None:
    path = tmp_path / "executors"
    path.write_text(text)
    wanted = scaling.published({scaling.FILE: str(path)})
    assert wanted is not None
    assert wanted() == count


@pytest.mark.parametrize("text", ["", "many", "-1", "{}", "[1]", '{"desiredReplicas": 100000}'])
def test_nonsense_is_no_number(text: str) -> None:
    with pytest.raises(Unknown):
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
    wanted = scaling.published({scaling.URL: f"{url}/images"})
    assert wanted is not None
    assert wanted() == 6
    unknown = scaling.published({scaling.URL: f"{url}/unknown"})
    assert unknown is not None
    assert unknown() == 6
    missing = scaling.published({scaling.URL: f"{url}/other"})
    assert missing is not None
    with pytest.raises(Unknown, match="404"):
        missing()
    server.shutdown()
    server.server_close()
    with pytest.raises(Unknown):
        wanted()


def test_a_missing_number_is_none() -> None:
    assert scaling.published({}) is None


def test_idle_and_young_executors_go_first() -> None:
    some = [Executor("1", 0), Executor("2", 3), Executor("10", 0), Executor("3", 1)]
    assert scaling.superfluous(some, 2) == ["10", "1"]
    assert scaling.superfluous(some, 0) == ["10", "1", "3", "2"]
    assert scaling.superfluous(some, 9) == []

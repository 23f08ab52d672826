"""The commands of the documentation, in order, print what the pages show.

Pages that need several brokers are run by `tests/cluster/test_cluster_page.py`, those that need
Kubernetes by `tests/e2e/test_pages.py`. Every block of commands in the documentation is run by one
of these tests, or listed here with the reason why it is not.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_tools
import pytest
from console import TERMINAL, Console, files, marks, steps
from ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkas import KafkaProcess
    from servers import ShoalProcess

#: The mark of commands for Apache Kafka.
KAFKA = "kafka"
ROOT = Path(__file__).parents[2]
KAFKA_PAGE = "docs/quickstart/kafka.md"
SPARK_PAGE = "docs/quickstart/spark.md"
STREAMS_PAGE = "docs/streams.md"
#: Pages whose unmarked commands run here, each against one broker.
PAGES = (
    "docs/cooperative.md",
    "docs/queues.md",
    "docs/quickstart/developer.md",
    KAFKA_PAGE,
    SPARK_PAGE,
    STREAMS_PAGE,
)
#: What a page needs beside Python.
NEEDS = {
    KAFKA_PAGE: (pytest.mark.java,),
    # Spark starts slowly on a busy machine.
    SPARK_PAGE: (pytest.mark.spark, pytest.mark.timeout(1200)),
    # Five JVMs.
    STREAMS_PAGE: (pytest.mark.java, pytest.mark.nightly),
}
#: Pages with commands, and the test that runs them.
ELSEWHERE = {
    "docs/backup.md": "tests/cluster/test_cluster_page.py",
    "docs/cluster.md": "tests/cluster/test_cluster_page.py",
}
#: Pages whose unmarked commands nothing runs, and why.
NOT_RUN = {
    "CONTRIBUTING.md": "the commands install dependencies and run the tests",
    "README.md": "the commands install packages, or need Kubernetes; the quick starts repeat them",
    "docs/console.md": "the commands need the reader's certificate; "
    "tests/compat/test_console.py runs their like",
    "docs/security.md": "the commands need keys and users of the reader; "
    "tests/compat/test_cli_security.py and tests/e2e/test_security.py run their like",
    "docs/tiered-storage.md": "the broker needs an object store; "
    "tests/compat/test_tiered_storage.py has a directory",
}
#: Marks of blocks, and the test that runs them, or why nothing does.
MARKS = {
    "": "see the tables above",
    TERMINAL: "run with the page",
    KAFKA: "run here, against Apache Kafka",
    "kubernetes": "run by tests/e2e/test_pages.py",
}


def documents() -> list[str]:
    """Return the paths of all documents for users and contributors."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


@pytest.fixture
def tools_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the scripts of Kafka's `bin` on the PATH, and its folder into KAFKA_HOME."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for script in (*kafka_tools.CLASSES, "kafka-configs"):
        path = folder / f"{script}.sh"
        path.write_text(f'exec {shlex.join(kafka_tools.command(script))} "$@"\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    # Unbuffered, Python writes a line's end apart from the line: workers' outputs would mix.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "libs").symlink_to(kafka_tools.LIBRARY)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    # Pages name files of the repository from its root.
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.mark.usefixtures("tools_on_path")
@pytest.mark.parametrize("page", [pytest.param(p, marks=NEEDS.get(p, ())) for p in PAGES])
def test_the_commands_of_the_page_print_what_it_shows(
    page: str, start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    text = (ROOT / page).read_text()
    port, metrics = free_ports(2)
    assert len(steps(text)) >= 5
    if TERMINAL in marks(text):
        # The page starts its own broker.
        text = text.replace("shoal server ", f"shoal server --listener 127.0.0.1:{port} ")
        text = text.replace("127.0.0.1:9092", f"127.0.0.1:{port}")
        text = text.replace("127.0.0.1:9404", f"127.0.0.1:{metrics}")
        bootstrap = f"127.0.0.1:{port}"
    else:
        bootstrap = start_broker(metrics=f"127.0.0.1:{metrics}").bootstrap
    with Console(tmp_path, bootstrap) as console:
        console.try_page(text)


@pytest.mark.java
def test_the_commands_for_kafka_print_what_the_page_shows(
    kafka: KafkaProcess, tmp_path: Path
) -> None:
    text = (ROOT / KAFKA_PAGE).read_text().replace("kafka.example:9092", kafka.bootstrap)
    tried = steps(text, KAFKA)
    assert len(tried) >= 5
    with Console(tmp_path, kafka.bootstrap) as console:
        console.try_all(tried)


def test_every_command_is_run_or_listed() -> None:
    found = {page: marks((ROOT / page).read_text()) for page in documents()}
    listed = {*PAGES, *ELSEWHERE, *NOT_RUN}
    assert {page for page, used in found.items() if "" in used} == listed
    assert {mark for used in found.values() for mark in used} == MARKS.keys()
    assert all((ROOT / test).is_file() for test in ELSEWHERE.values())


def test_a_different_output_is_found(tmp_path: Path) -> None:
    """Also that of a command that keeps running, and with files that the page names."""
    page = '```python title="say.py"\nprint("yes")\n```\n\n```console\n$ python say.py\nno\n```\n'
    assert files(page) == {"say.py": 'print("yes")\n'}
    with Console(tmp_path, "") as console:
        with pytest.raises(AssertionError, match="the page shows\nno\n--- the output is\nyes"):
            console.try_page(page)
        console.try_page(page.replace("\nno\n", "\nyes\n"))


def test_a_terminal_that_does_not_print_what_the_page_shows_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "<!-- console: terminal -->\n```console\n$ echo other; sleep 60\nready\n```\n"
    assert marks(page) == {TERMINAL}
    monkeypatch.setattr("console.STARTED_WITHIN_S", 2.0)
    with Console(tmp_path, "") as console:
        with pytest.raises(AssertionError, match=r"the page shows\nready\n--- the output is"):
            console.try_page(page)
        console.try_page(page.replace("other", "ready"))

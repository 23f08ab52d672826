"""The commands of the documentation, in order, print what the pages show.

Pages that need several brokers are run by `tests/cluster/test_cluster_page.py`, those that need
Kubernetes by `tests/e2e/test_pages.py`. Every block of commands in the documentation is run by one
of these tests, or listed here with the reason why it is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.pages.console import TERMINAL, Console, files, marks
from support.pages.page_runs import try_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

ROOT = Path(__file__).parents[3]
QUEUES_PAGE = "docs/queues.md"
#: Pages whose unmarked commands run here, each against one broker.
PAGES = (
    "docs/celery.md",
    "docs/client.md",
    "docs/cooperative.md",
    QUEUES_PAGE,
    "docs/quickstart/developer.md",
    "docs/quickstart/first-job.md",
    "docs/tracing.md",
    "docs/worker.md",
)
#: Pages that run at night. By day, what they show has tests of its own: test_celery, test_tracing,
#: test_key_range_groups and docs/client.md.
AT_NIGHT = (
    "docs/celery.md",
    "docs/cooperative.md",
    "docs/quickstart/developer.md",
    "docs/tracing.md",
)
#: Sections that wait. No other section needs them, so they run beside the others.
ASIDE = {QUEUES_PAGE: ("Delay",)}
#: Pages with commands, and the test that runs them.
ELSEWHERE = {
    "docs/backup.md": "tests/cluster/test_cluster_page.py",
    "docs/cluster.md": "tests/cluster/test_cluster_page.py",
    "docs/django.md": "tests/compat/pages/test_django_page.py",
    "docs/quickstart/kafka.md": "tests/compat/pages/test_kafka_pages.py",
    "docs/quickstart/laptop.md": "tests/compat/pages/test_laptop_page.py",
    "docs/quickstart/spark.md": "tests/spark/test_quick_start.py",
    "docs/streams.md": "tests/compat/pages/test_kafka_pages.py",
    "docs/testing.md": "tests/compat/pages/test_testing_page.py",
}
#: Pages whose unmarked commands nothing runs, and why.
NOT_RUN = {
    "CONTRIBUTING.md": "the commands install dependencies and run the tests",
    "README.md": "the commands install packages, or need Kubernetes; the quick starts repeat them",
    "docs/console.md": "the commands need the reader's certificate; "
    "tests/compat/console/test_every_page.py runs their like",
    "docs/security.md": "the commands need keys and users of the reader; "
    "tests/compat/cli/test_security.py and tests/e2e/test_security.py run their like",
    "docs/tiered-storage.md": "the broker needs an object store; "
    "tests/compat/tiered/test_storage.py has a directory",
}
#: Marks of blocks, and the test that runs them, or why nothing does.
MARKS = {
    "": "see the tables above",
    TERMINAL: "run with the page",
    "clients": "run by tests/compat/pages/test_client_languages.py",
    "go": "run by tests/compat/pages/test_client_languages.py",
    "java": "run by tests/compat/pages/test_client_languages.py",
    "kafka": "run by tests/compat/pages/test_kafka_pages.py, against Apache Kafka",
    "laptop": "looked at by tests/compat/pages/test_laptop_page.py",
    "kubernetes": "run by tests/e2e/test_pages.py",
}


def documents() -> list[str]:
    """Return the paths of all documents for users and contributors."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


def test_the_first_job_takes_five_minutes() -> None:
    """All words at 238 a minute, which is what adults read, ten seconds for each block and command
    that the reader copies, and half a minute for what the programs do."""
    path = "docs/quickstart/first-job.md"
    text = (ROOT / path).read_text().partition("## Next")[0]
    copied = text.count("\n$ ") + text.count("```python") + text.count("```\npython3")
    assert copied > 10
    assert len(text.split()) / 238 * 60 + 10 * copied + 30 <= 300


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.nightly] if page in AT_NIGHT else []) for page in PAGES],
)
def test_the_commands_of_the_page_print_what_it_shows(
    page: str, start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    try_page((ROOT / page).read_text(), start_broker, tmp_path, ASIDE.get(page, ()))


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
    monkeypatch.setattr("support.pages.console.STARTED_WITHIN_S", 2.0)
    with Console(tmp_path, "") as console:
        with pytest.raises(AssertionError, match=r"the page shows\nready\n--- the output is"):
            console.try_page(page)
        console.try_page(page.replace("other", "ready"))

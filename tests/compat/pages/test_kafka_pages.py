"""The commands of the documentation that need Kafka's tools or Apache Kafka, in order."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka import kafka_tools
from support.pages.console import Console, steps
from support.pages.page_runs import try_page

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess
    from support.brokers.shared_servers import SharedKafka

pytestmark = pytest.mark.java
ROOT = Path(__file__).parents[3]
KAFKA_PAGE = "docs/quickstart/kafka.md"
PAGES = (KAFKA_PAGE, "docs/streams.md")


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
    (tmp_path / "libs").symlink_to(kafka_tools.LIBRARY)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    # Pages name files of the repository from its root.
    (tmp_path / "examples").symlink_to(ROOT / "examples")


@pytest.mark.nightly
@pytest.mark.usefixtures("tools_on_path")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_print_what_it_shows(
    page: str, start_broker: Callable[..., ShoalProcess], tmp_path: Path
) -> None:
    """Each has about five JVMs of Kafka's tools (by day: `clients/test_tools_*`)."""
    try_page((ROOT / page).read_text(), start_broker, tmp_path)


def test_the_commands_for_kafka_print_what_the_page_shows(
    get_kafka: Callable[..., SharedKafka], tmp_path: Path
) -> None:
    bootstrap = get_kafka().bootstrap
    text = (ROOT / KAFKA_PAGE).read_text().replace("kafka.example:9092", bootstrap)
    tried = steps(text, "kafka")
    assert len(tried) >= 5
    with Console(tmp_path, bootstrap) as console:
        console.try_all(tried)

"""The programs of docs/clients.md do what the page shows, with the clients of their languages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka.java_classes import LIBRARY
from support.pages.console import TERMINAL, Console, files, steps
from support.runs.machine import lacking
from support.runs.npm_packages import KAFKAJS, find_kafkajs

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.brokers.servers import ShoalProcess

ROOT = Path(__file__).parents[3]
GO_MODULE = ROOT / "tests" / "e2e" / "cluster" / "go" / "franz-go"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with what the page needs besides the files that it shows."""
    (tmp_path / "lib").symlink_to(LIBRARY)
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO_MODULE / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "language",
    [*(pytest.param(name, marks=pytest.mark.nightly) for name in ("java", "go")), "node"],
)
def test_a_worker_prints_what_the_page_shows(
    language: str, start_broker: Callable[..., ShoalProcess], folder: Path
) -> None:
    """A JVM that compiles its source takes 4 s of CPU, so it runs at night: Java's clients have
    tests by day. Go compiles its client and half of its own library the first time, so it does at
    night, as franz-go's own tests (`test_client_suites`). A consumer of kafkajs waits 3 s for
    others of its group."""
    if shutil.which(language) is None or (language == "java" and not any(LIBRARY.glob("*.jar"))):
        lacking(f"{language} is not installed")
    if language == "go":  # Otherwise `go run` tells of each download.
        download = ["go", "mod", "download"]
        subprocess.run(download, cwd=folder, check=True, capture_output=True, timeout=300)
    if language == "node":
        (folder / "node_modules").symlink_to(find_kafkajs())
    bootstrap = start_broker().bootstrap
    page = (ROOT / "docs" / "clients.md").read_text().replace("127.0.0.1:9092", bootstrap)
    for name, content in files(page).items():
        (folder / name).write_text(content)
    with Console(folder, bootstrap) as console:
        # The program of Node keeps running.
        mark = TERMINAL if language == "node" else language
        console.try_all([*steps(page, "clients"), *steps(page, mark)])


def test_the_page_names_the_versions_that_tests_use() -> None:
    page = (ROOT / "docs" / "clients.md").read_text()
    module = (GO_MODULE / "go.mod").read_text()
    assert f"franz-go@{module.partition('require github.com/twmb/franz-go ')[2].split()[0]}" in page
    assert f"npm install {KAFKAJS}`" in page
    pom = (ROOT / "tests" / "compat" / "pom.xml").read_text()
    assert f">{page.partition('kafka-clients:')[2].split('`')[0]}</kafka.version>" in pom

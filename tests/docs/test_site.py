"""The documentation site builds without a warning, and its pages load nothing from other hosts.

MkDocs checks links and anchors between pages (`strict` and `validation` in its configuration).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.runs.machine import lacking

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "tools" / "site" / "mkdocs.yml"
#: Attributes from which a browser loads something without a click.
LOADED = {"img": "src", "link": "href", "script": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """Collects what a page loads and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and (address := given.get(LOADED[tag])):
            self.loaded.append(address)
        if tag == "a" and (address := given.get("href")):
            self.links.append(address)


def build(config: Path, into: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", f"--config-file={config}", f"--site-dir={into}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("material") is None:
        lacking("mkdocs-material is not installed: run `make site`")
    folder = tmp_path_factory.mktemp("site")
    built = build(CONFIG, folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for path in pages:
        loaded = Page(path.read_text()).loaded
        assert loaded, path
        assert not [one for one in loaded if re.match(r"(\w+:)?//", one)], path
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert not [one for text in styles for one in re.findall(r"url\((?:https?:)?//[^)]+", text)]


def test_links_lead_to_files_of_the_site(site: Path) -> None:
    """Also those that the hooks have rewritten, and those in HTML."""
    for path in sorted(site.rglob("*.html")):
        if path.name == "404.html":
            continue
        for link in Page(path.read_text()).links:
            if re.match(r"https?:|mailto:|#", link):
                continue
            target = (path.parent / link.partition("#")[0]).resolve()
            assert target.exists(), f"{path.relative_to(site)} links to {link}"


def test_user_pages_are_in_the_navigation_and_decisions_are_not(site: Path) -> None:
    links = set(Page((site / "index.html").read_text()).links)
    assert {"quickstart/developer.html", "troubleshooting.html", "metrics.html"} <= links
    assert "adr/index.html" in links
    assert not [link for link in links if re.match(r"adr/\d|benchmarks/2", link)]


def test_the_reference_is_made_of_docstrings(site: Path) -> None:
    text = (site / "reference" / "python.html").read_text()
    assert "shoal.client.synchronous.SyncProducer.send_many" in text
    assert "Store records in batches, and return where" in text
    assert ":::" not in text


def test_the_search_finds_pages_for_users(site: Path) -> None:
    """Decisions and dated benchmarks were the first hits for what new users look for."""
    index = json.loads((site / "search" / "search_index.json").read_text())
    pages = {one["location"].partition("#")[0] for one in index["docs"]}
    assert {"quickstart/developer.html", "queues.html", "benchmarks/index.html"} <= pages
    hidden = [p for p in pages if p.startswith(("adr/", "benchmarks/20"))]
    assert not hidden
    for words in ("python client", "dead letter", "timeout", "priority"):
        assert any(
            all(word in f"{one['title']} {one['text']}".lower() for word in words.split())
            for one in index["docs"]
        ), words


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[x](nowhere.md)", "nowhere.md"),
        ("[x](index.md#nowhere)", "#nowhere"),
        ("[x](../nowhere.txt)", "nowhere.txt"),
    ],
)
def test_a_broken_link_ends_the_build(text: str, warning: str, site: Path, tmp_path: Path) -> None:
    assert site.exists()
    for name in ("tools", "docs", "examples", "broker_image"):
        (tmp_path / name).mkdir()
    (tmp_path / "tools" / "site").symlink_to(ROOT / "tools" / "site")
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n")
    config = tmp_path / "mkdocs.yml"
    hooks = ROOT / "tools" / "site" / "hooks.py"
    settings = CONFIG.read_text().partition("nav:\n  -")[0]
    settings = settings.replace("../../docs", "docs").replace("- hooks.py", f"- {hooks}")
    config.write_text(settings)
    built = build(config, tmp_path / "built")
    assert built.returncode == 1
    assert warning in built.stderr, built.stderr

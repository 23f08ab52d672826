"""Hooks of MkDocs: pages from outside of `docs/`, and the links to them.

The documents link to each other relative to the repository, so that they also work in a
repository browser. The site has the contributors' documents at the top of the tree, and a page with
the manifests of `examples/`. A link to any other file of the repository leads to a copy of that
file under `files/`.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ASSETS = Path(__file__).parent / "assets"
#: Documents at the top of the tree, with their pages.
DOCUMENTS = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
}
#: Folders that have a page, by their path in the repository.
FOLDERS = {
    "docs/adr": "adr/README.md",
    "examples": "examples.md",
    "examples/external": "examples.md#examplesexternal",
    "examples/keda": "examples.md#exampleskeda",
    "examples/security": "examples.md#examplessecurity",
}
#: Decisions, their index, and benchmarks of one day. Their own pages lead to them.
_UNSEARCHED = re.compile(r"adr/|benchmarks/20")
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and assets that are not in `docs/`."""
    for path, page in DOCUMENTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    files.append(File.generated(config, "examples.md", content=build_examples()))
    for asset in sorted(ASSETS.iterdir()):
        folder = "images" if asset.suffix == ".svg" else "site"
        files.append(File.generated(config, f"{folder}/{asset.name}", abs_src_path=str(asset)))
    uris = {file.src_uri for file in files}
    for file in [f for f in files if f.is_documentation_page()]:
        for path in _find_linked_files(file.content_string, find_repository_path(file.src_uri)):
            if f"files/{path}" not in uris:
                uris.add(f"files/{path}")
                source = str(ROOT / path)
                files.append(File.generated(config, f"files/{path}", abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Replace links that are relative to the repository by those of the site, and leave pages out
    of the search that would answer a user's question with the reason for a decision."""
    here = find_repository_path(page.file.src_uri)
    if _UNSEARCHED.match(page.file.src_uri):
        page.meta["search"] = {"exclude": True}

    def replace(link: re.Match[str]) -> str:
        target = find_site_path(link[2], here)
        if target is None:
            return link[0]
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}{relative}{link[3] or ''}{link[4]}"

    parts = _FENCE.split(markdown)
    return "".join(p if p.startswith("```") else _LINK.sub(replace, p) for p in parts)


def find_repository_path(page: str) -> str:
    """Return where the source of a page is in the repository."""
    return next((path for path, name in DOCUMENTS.items() if name == page), f"docs/{page}")


def find_site_path(link: str, source: str) -> str | None:
    """Return the path in the site of a link in a document, or None if MkDocs finds it."""
    if ":" in link:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path in DOCUMENTS:
        return DOCUMENTS[path]
    if path in FOLDERS:
        return FOLDERS[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"files/{path}" if (ROOT / path).is_file() else None


def _find_linked_files(markdown: str, source: str) -> list[str]:
    text = _FENCE.sub("", markdown)
    targets = [find_site_path(link[2], source) for link in _LINK.finditer(text)]
    return [t.removeprefix("files/") for t in targets if t is not None and t.startswith("files/")]


def build_examples() -> str:
    """Return the page with the manifests of `examples/`."""
    lines = ["# Examples", "", "Apply the manifests of a folder in the order of their numbers."]
    for folder in (name for name in FOLDERS if name.startswith("examples")):
        lines += ["", f"## {folder}"]
        for path in sorted((ROOT / folder).glob("[0-9]*.yaml")):
            lines += ["", f"### {path.name}", "", "```yaml", path.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"

"""The bill of materials of an image: its Python and Debian packages, in CycloneDX 1.6."""

from __future__ import annotations

import json
import tarfile
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_STATUS = "var/lib/dpkg/status"


def describe_image(archive: Path, name: str, version: str) -> str:
    """Return the bill of materials of a docker archive as JSON."""
    components = {component["purl"]: component for component in _find_components(archive)}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": name, "version": version}},
        "components": [components[purl] for purl in sorted(components)],
    }
    return json.dumps(document, indent=1) + "\n"


def _find_components(archive: Path) -> Iterator[dict[str, Any]]:
    debian: list[dict[str, Any]] = []
    with tarfile.open(archive) as image:
        manifest = json.load(_read_member(image, "manifest.json"))
        for layer in manifest[0]["Layers"]:
            with tarfile.open(fileobj=_read_member(image, layer)) as files:
                for entry in files:
                    path = entry.name.removeprefix("./")
                    if path.endswith(".dist-info/METADATA") and entry.isfile():
                        about = HeaderParser().parsestr(_read_text(files, entry))
                        name = about["Name"].lower().replace("_", "-")
                        yield _make_component("pypi", name, about["Version"])
                    elif path == _STATUS and entry.isfile():
                        # A later layer has the whole list again.
                        debian = list(_parse_status(_read_text(files, entry)))
    yield from debian


def _parse_status(text: str) -> Iterator[dict[str, Any]]:
    for part in text.split("\n\n"):
        about = HeaderParser().parsestr(part)
        if about["Package"] and about["Status"] == "install ok installed":
            yield _make_component("deb/debian", about["Package"], about["Version"])


def _make_component(kind: str, name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:{kind}/{quote(name)}@{quote(version)}"
    return {"type": "library", "name": name, "version": version, "purl": purl}


def _read_member(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file


def _read_text(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    file = archive.extractfile(entry)
    assert file is not None
    return file.read().decode(errors="replace")

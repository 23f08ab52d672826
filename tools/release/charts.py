"""The Helm charts: the operator's, and one with the custom resource definitions.

Helm never upgrades the definitions in a chart's `crds` folder. In the chart `shoal-crds` they are
templates, so `helm upgrade` changes them. Its `helm uninstall` keeps them, and all resources.
"""

from __future__ import annotations

import gzip
import io
from typing import TYPE_CHECKING

import yaml

from release import tar
from release.checkout import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from release.checkout import Checkout

CRDS = "shoal-crds"


def build(checkout: Checkout, sources: Path, into: Path) -> None:
    """Write both charts as archives, as `helm package` names them. Raises `ReleaseError`."""
    into.mkdir()
    chart = sources / "helm" / "shoal"
    files = {
        str(path.relative_to(chart)): path.read_bytes()
        for path in sorted(chart.rglob("*"))
        if path.is_file()
    }
    _write(into, "shoal", checkout, files)
    _write(into, CRDS, checkout, read_definitions(sources, checkout.version))


def read_definitions(sources: Path, version: str) -> dict[str, bytes]:
    """Return the files of the chart with the definitions."""
    about = yaml.safe_load((sources / "helm" / "shoal" / "Chart.yaml").read_text())
    about |= {
        "name": CRDS,
        "description": "The custom resource definitions of Shoal, which helm upgrade changes.",
        "version": version,
    }
    files = {"Chart.yaml": yaml.safe_dump(about, sort_keys=False).encode()}
    for path in sorted((sources / "crds").glob("*.yaml")):
        text = path.read_text()
        if "{{" in text:
            raise ReleaseError(f"{path.name} has '{{{{', which Helm would take for a template.")
        made = yaml.safe_load(text)
        made["metadata"].setdefault("annotations", {})["helm.sh/resource-policy"] = "keep"
        files[f"templates/{path.name}"] = yaml.safe_dump(made, sort_keys=False).encode()
    return files


def _write(into: Path, name: str, checkout: Checkout, files: Mapping[str, bytes]) -> None:
    content = io.BytesIO()
    tar.write(content, {f"{name}/{path}": data for path, data in files.items()}, checkout.time_s)
    packed = gzip.compress(content.getvalue(), mtime=0)
    (into / f"{name}-{checkout.version}.tgz").write_bytes(packed)

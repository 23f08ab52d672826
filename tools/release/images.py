"""The OCI archives of the images of broker, operator and Spark jobs, with bills of materials."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster import images
from e2e.cluster.layout import ClusterError

from release import sbom, tar
from release.checkout import ReleaseError

if TYPE_CHECKING:
    from release.checkout import Checkout


NAMES = tuple(images.IMAGES)


def build(name: str, checkout: Checkout, into: Path) -> None:
    """Build and write an image. Raises `ReleaseError`."""
    into.mkdir(exist_ok=True)
    part = f"shoal-{name}-{checkout.version}"
    try:
        archive = images.archive(name)
        _write_archive(name, into / f"{part}.oci.tar", checkout.time_s)
    except ClusterError as error:
        raise ReleaseError(str(error)) from None
    bill = sbom.describe_image(archive, f"shoal/{name}", checkout.version)
    (into / f"{part}.cdx.json").write_text(bill)


def _write_archive(name: str, path: Path, time_s: int) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as work:
        folder = Path(work) / "layout"
        images.write_oci_layout(name, folder)
        files = {
            str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()
        }
        with path.open("wb") as archive:
            tar.write(archive, files, time_s)

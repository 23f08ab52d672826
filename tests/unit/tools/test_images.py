"""What images are built from: locked packages, and Debian's of this month."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from e2e.cluster import images

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_archives_and_bases_of_an_earlier_month_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their packages lack Debian's later mends."""
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(images, "docker_answers", lambda: False)
    monkeypatch.delenv("IMAGE_MONTH")
    names = []
    for day in ("2026-11-01", "2026-11-30", "2026-12-01"):
        moment = time.strptime(day, "%Y-%m-%d")
        monkeypatch.setattr(time, "gmtime", lambda moment=moment: moment)
        names.append((images.find_path("operator"), images.base_name(("python3",))))
    for first, same, later in zip(*names, strict=True):
        assert first == same != later


def test_a_run_keeps_its_images_when_the_month_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "docker_answers", lambda: False)
    names = set()
    for day in ("2026-11-30", "2026-12-01"):
        moment = time.strptime(day, "%Y-%m-%d")
        monkeypatch.setattr(time, "gmtime", lambda moment=moment: moment)
        names.add((images.find_path("operator"), images.base_name(("python3",))))
    assert len(names) == 1


def test_an_archive_depends_on_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CACHE", tmp_path)
    monkeypatch.setattr(images, "docker_answers", lambda: False)
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    image = images.IMAGES["operator"]
    for name in (image.containerfile, *image.locks, *images.PROJECT):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    for name in image.sources:
        (tmp_path / name).mkdir(parents=True)
    found = {images.find_path("operator")}
    for name in image.locks:
        (tmp_path / name).write_text("h==1\n")
        found.add(images.find_path("operator"))
    assert len(found) == 3


def test_the_packages_of_an_image_are_those_of_its_python() -> None:
    """pip reads the markers of a lock as the Python that it runs in."""
    pins = [
        'a==1 ; python_full_version < "3.12" \\\n    --hash=sha256:1\n',
        'a==2 ; python_full_version >= "3.12" \\\n    --hash=sha256:2\n',
        "b==1 \\\n    --hash=sha256:3\n",
        "c==1 ; sys_platform == 'win32' \\\n    --hash=sha256:4\n",
    ]
    for debian, selected in ((images.BOOKWORM, pins[0]), (images.TRIXIE, pins[1])):
        assert list(images.select_pins("".join(pins), debian)) == [selected, pins[2]]

"""`shoal demo`, as users call it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from shoal_spark.demo.local import missing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(400)
def test_the_pipeline_on_one_machine(tmp_path: Path) -> None:
    """Every good image has a result, every broken one is a dead letter, tasks outnumber
    partitions."""
    picture = tmp_path / "demo.png"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal.cli",
            "demo",
            "--images=300",
            f"--picture={picture}",
            "--timeout=300",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=350,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "294 of 294 images have a thumbnail" in done.stdout
    assert "6 of 6 broken ones are dead letters" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob("shoal-demo-*")), "it left files behind"


def test_missing_requirements_are_reported(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.touch(mode=0o755)
    here = {"PATH": str(tmp_path)}
    assert missing(here, has=lambda name: True) == ""
    assert "pip install 'shoal[spark]'" in missing(here, has=lambda name: name != "pyspark")
    said = missing(here, has=lambda name: name not in ("pyspark", "skimage"))
    assert "(pyspark, skimage): pip install 'shoal[spark,jobs]'" in said
    assert "needs Java 17" in missing({"PATH": "/nowhere"}, has=lambda name: True)
    wrong = missing({"JAVA_HOME": "/nowhere"}, has=lambda name: True)
    assert wrong.startswith("JAVA_HOME is /nowhere, which has no bin/java")

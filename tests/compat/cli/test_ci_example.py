"""The example of a service's integration test in CI: examples/ci."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[3] / "examples" / "ci"


@pytest.mark.nightly
def test_the_service_passes_its_test_with_its_own_manifests(tmp_path: Path) -> None:
    """As the last step of the workflow says. It starts a broker and the service."""
    folder = tmp_path / "service"
    shutil.copytree(EXAMPLE, folder)
    workflow = yaml.safe_load((folder / "workflow.yaml").read_text())
    *_, step = workflow["jobs"]["test"]["steps"]
    program, *words = step["run"].split()
    done = subprocess.run(
        [sys.executable, "-m", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (program, done.returncode) == ("pytest", 0), done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert not (folder / "queue" / ".shoal").exists(), "objects are in a temporary folder"

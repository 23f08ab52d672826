"""Commands of other packages: found by entry points, and named with what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from shoal.cli.client_properties import find_folder_properties

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plug_in_that_is_not_installed_says_what_to_install() -> None:
    code = "import sys; sys.modules['cel'] = None; from shoal.cli.main import app; app(['up'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == (
        "shoal: `shoal up` is not installed: there is no module cel. Install it with "
        "`pip install 'shoal[up]'`.\n"
    )
    assert done.returncode == 1


def test_properties_of_a_folder_count_only_if_nobody_else_reads_or_writes_them(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_folder_properties(inner) is None
    file = tmp_path / ".shoal" / "client.properties"
    file.parent.mkdir()
    file.write_text("bootstrap.servers=127.0.0.1:1\n")
    file.chmod(0o600)
    assert find_folder_properties(inner) == file
    for mode in (0o640, 0o604, 0o602):
        file.chmod(mode)
        assert find_folder_properties(inner) is None
    file.unlink()
    os.symlink("/dev/null", file)
    assert find_folder_properties(inner) is None

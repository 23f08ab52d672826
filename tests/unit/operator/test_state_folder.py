"""The state folder of `shoal up` has keys and the socket of the operator, for its owner alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from shoal.cli.session import CommandError
from shoal_operator.local.state_folder import StateFolder, find

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_that_was_there_is_closed_to_others(tmp_path: Path) -> None:
    root = tmp_path / ".shoal"
    root.mkdir()
    root.chmod(0o775)
    StateFolder(root).create()
    assert root.stat().st_mode & 0o777 == 0o700


def test_the_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / ".shoal"
    root.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    with pytest.raises(CommandError, match="belongs to another user"):
        StateFolder(root).create()


def test_a_folder_that_others_may_have_made_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may make one in `/tmp`, above the folder of a user."""
    above, own = tmp_path / ".shoal", tmp_path / "work" / ".shoal"
    for root in (above, own):
        (root / "objects").mkdir(parents=True)
    assert find(own.parent / "deep") == StateFolder(own)
    own.chmod(0o777)
    assert find(own.parent / "deep") == StateFolder(above)
    monkeypatch.setattr(os, "geteuid", lambda: above.stat().st_uid + 1)
    assert find(own.parent) is None

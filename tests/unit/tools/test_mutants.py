"""`tools/mutants.py`: the changes that it makes to a module, and the comparison of two runs."""

from __future__ import annotations

import json
from types import ModuleType
from typing import TYPE_CHECKING

import mutants
import pytest
from mutants import Importer, Mutant

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
LIMIT: int = 3

def may_take(count, done):
    assert count != 7
    if count < LIMIT and not done:
        done.append(count)
        return count + 1
    return count
"""
#: What `may_take(3, [])` and `may_take(1, taken)` return under each mutant, and what is taken.
EXPECTED = {
    "2:13 one more": (4, 2, [1]),
    "6:4 drop branch": (3, 1, []),
    "6:4 negate condition": (4, 1, []),
    "6:7 And to Or": (4, 2, [1]),
    "6:7 Lt to LtE": (4, 2, [1]),
    "7:8 drop call": (3, 2, []),
    "8:8 return None": (3, None, [1]),
    "8:15 Add to Sub": (3, 0, [1]),
    "8:23 one more": (3, 3, [1]),
    "9:4 return None": (None, 2, [1]),
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "root" / "package" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return path


def test_each_mutant_changes_one_thing(path: Path) -> None:
    found = {}
    for mutant in mutants.find_mutants(path):
        importer = Importer(mutant)
        assert importer.find_spec("package.module") is not None
        assert importer.find_spec("package") is None
        module, taken = ModuleType("package.module"), list[int]()
        importer.exec_module(module)
        results = module.may_take(3, []), module.may_take(1, taken)
        found[str(mutant).partition(":")[2]] = (*results, taken)
    assert found == EXPECTED


@pytest.mark.usefixtures("path")
def test_a_place_that_is_gone_is_named() -> None:
    with pytest.raises(LookupError, match=r"module\.py:2:13 drop call is not in the source"):
        mutants.compile_mutant(Mutant("root/package/module.py", 2, 13, "drop call"))


def test_all_modules_of_the_parts_are_there() -> None:
    assert set(mutants.read_product_files().values()) == set(mutants.PARTS)
    assert len(mutants.read_product_files()) > 100


def test_only_what_was_found_before_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"a": "killed", "b": "ran too long", "c": "survived"}))
    after.write_text(json.dumps({"a": "killed", "b": "killed", "c": "killed"}))
    assert mutants.compare(before, after) == 0
    assert "found after only: 1\n  c\n" in capsys.readouterr().out
    after.write_text(json.dumps({"a": "survived", "b": "not covered", "c": "survived"}))
    assert mutants.compare(before, after) == 1
    assert "found before only: 2\n  a\n  b\n" in capsys.readouterr().out

"""The mends of `tools/robust_mutants.py`: each has a place in the source and a test, and at night
each is undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mutants
import pytest
from mutants import ROOT, Copy
from robust_mutants import TABLE, Undone

if TYPE_CHECKING:
    from pathlib import Path


def test_each_mend_has_its_place_and_a_test() -> None:
    rules = [undone.rule for undone in TABLE]
    assert len(set(rules)) == len(rules)
    for undone in TABLE:
        assert (ROOT / undone.path).read_text().count(undone.old) == 1, undone.rule
        path, _, function = undone.test.partition("::")
        assert (ROOT / path).is_file(), undone.rule
        assert f"def {function.partition('[')[0]}" in (ROOT / path).read_text(), undone.rule


def test_a_mend_is_undone_in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs of pytest take some seconds."""
    root = tmp_path / "root"
    tools = root / "tools"
    tools.mkdir(parents=True)
    (tools / "product.py").write_text("LIMIT = 3\n")
    for name, expected in (("good", 3), ("bad", 4)):
        lines = (
            "import runpy",
            f"def test_{name}():",
            "    product = runpy.run_path('tools/product.py')",
            f"    assert product['LIMIT'] == {expected}",
        )
        (tools / f"test_{name}.py").write_text("\n".join(lines))
    monkeypatch.setattr(mutants, "ROOT", root)
    (tmp_path / "copy").mkdir()
    copy = Copy(tmp_path / "copy")
    undone = Undone("limit", "tools/product.py", "3", "5", "tools/test_good.py")
    assert copy.run(undone) == "killed"
    assert copy.run(undone._replace(new="3.0")) == "survived"
    assert copy.run(undone._replace(old="4")) == "not in the source"
    assert copy.run(undone._replace(test="tools/test_bad.py")) == "fails anyway"
    assert (tools / "product.py").read_text() == "LIMIT = 3\n", "the tree is as it was"


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_each_mend_is_missed(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    outcomes = {undone.rule: copy.run(undone) for undone in TABLE}
    missed = {rule: o for rule, o in outcomes.items() if o not in mutants.CAUGHT}
    assert not missed, "tests that do not notice, by the mend that was undone"

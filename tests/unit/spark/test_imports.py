"""The unit tests need no Spark, since `make unit` installs none."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[1]


def find_imports(path: Path) -> set[str]:
    """Return the modules of the Spark package that a test imports, or takes a name from."""
    names: set[str] = set()
    source = path.read_text()
    if "shoal_spark" not in source:
        return names
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal_spark"):
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("shoal_spark")}
    return names


def test_modules_that_unit_tests_import_need_no_spark() -> None:
    """In a process of its own, which takes a second: here, Spark may have been imported."""
    names = sorted(set().union(*map(find_imports, UNIT.rglob("*.py"))))
    assert "shoal_spark.outcome_files" in names
    code = (
        "import importlib, sys\n"
        "sys.modules['pyspark'] = None\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name != 'pyspark' and not error.name.startswith('pyspark.'), name\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr

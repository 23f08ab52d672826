"""The house style, enforced: sizes, words and places. Each rule says what to do about it."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 800
FUNCTION_LINES_MAX = 70
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
MACHINE = re.compile(r"(^|[^A-Za-z0-9_.])/(work|root|farm)/|https?://[^ ]*pypi\.org|(index-url)")
SLEEP = re.compile(r"\btime\.sleep\(|asyncio\.sleep\((?!0\))")


def tracked() -> list[Path]:
    out = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in out.splitlines() if (ROOT / name).is_file()]


PYTHON = [p for p in tracked() if p.suffix == ".py"]
TEXT = [p for p in tracked() if p.suffix in {".py", ".md", ".yaml", ".yml", ".sh", ".go", ".toml"}]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_are_read_in_one_sitting() -> None:
    long = {name(p): n for p in PYTHON if (n := p.read_text().count("\n")) > LINES_MAX}
    assert not long, f"split these files by concern: {long}"


def test_functions_fit_a_screen() -> None:
    long = []
    for path in PYTHON:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > FUNCTION_LINES_MAX:
                    long.append(f"{name(path)}:{node.lineno} {node.name} ({size})")
    assert not long, f"split these functions: {long}"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (UNFINISHED, "what is not there is refused with a clear error, not marked for later"),
        (MACHINE, "no machine's paths and no registry's host name belong here"),
    ],
    ids=["unfinished", "machine"],
)
def test_words(pattern: re.Pattern[str], why: str) -> None:
    here = Path(__file__)
    hits = [
        f"{name(p)}:{number}"
        for p in TEXT
        if p != here
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, f"{why}: {hits}"


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    tests = [p for p in PYTHON if "tests" in p.parts and p != Path(__file__)]
    hits = [
        f"{name(p)}:{number}"
        for p in tests
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if SLEEP.search(line)
    ]
    assert not hits, f"wait for the condition (conditions.eventually): {hits}"


def test_operator_is_a_source_root_and_no_package() -> None:
    wrong = [
        name(p)
        for p in tracked()
        if (p.parent == ROOT / "operator" and p.suffix == ".py") or "operator/test" in name(p)
    ]
    assert not wrong, f"these shadow Python's own operator module: {wrong}"


def test_modules_say_what_they_are() -> None:
    packages = [p for p in PYTHON if "tests" not in p.parts and p.read_text().strip()]
    silent = [name(p) for p in packages if ast.get_docstring(ast.parse(p.read_text())) is None]
    assert not silent, f"a module's docstring says what it is: {silent}"

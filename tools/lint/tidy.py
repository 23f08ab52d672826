"""The house style as tests: sizes, words and places. Each failure states the remedy."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 800
FUNCTION_LINES_MAX = 70
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|NotImplemented" r"Error)\b")
#: Absolute paths may start with a standard directory, or with a placeholder or URL path of ours.
DIRECTORIES = frozenset("bin dev etc lib mnt opt proc run sbin src sys usr var".split())
PLACEHOLDERS = frozenset(
    "data jvm mine path api apis live metrics namespaces scale schemas spec static subjects".split()
)
ABSOLUTE = re.compile(r"(?<![\w.:/$}{*)~<>\]-])/([A-Za-z][\w.-]*)/([\w.-]*)")
#: Home directories of the image and of examples.
HOMES = frozenset({"/home/you", "/home/spark", "/home/conf"})
#: Hosts in URLs are public sites of projects, names in a cluster, or addresses of this machine.
HOST = re.compile(r"\b[a-z]+://(?:[^\s/@\"']*@)?([A-Za-z][\w-]*(?:\.[\w-]+)*\.[a-z]{2,})\b")
HOSTS = re.compile(
    r"((www\.)?apache\.org|github\.com|kubernetes\.io|.*\.svc(\.cluster\.local)?|.*example(\.\w+)?)$"
)
#: Settings of one machine's package sources.
SOURCES = re.compile(r"(--|_)(extra.)?index[-_]url|\bGOPROXY[=]|registry[-]mirror", re.IGNORECASE)
FMT_SKIPS_MAX = 50
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
TEXT = [
    p
    for p in tracked()
    if p.suffix in {".py", ".md", ".yaml", ".yml", ".sh", ".go", ".toml"}
    or p.name in {"Makefile", "Containerfile", "run"}
]


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


def test_nothing_is_unfinished() -> None:
    here = Path(__file__)
    hits = [
        f"{name(p)}:{number}"
        for p in TEXT
        if p != here
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not hits, f"what is missing is refused with a clear error, not marked for later: {hits}"


def of_a_machine(line: str) -> list[str]:
    """Return the paths, hosts and package sources in a line that only some machines have."""
    found = [
        match[0]
        for match in ABSOLUTE.finditer(line)
        if match[1] not in DIRECTORIES | PLACEHOLDERS and match[0] not in HOMES
    ]
    found += [match[1] for match in HOST.finditer(line) if not HOSTS.match(match[1])]
    return found + [match[0] for match in SOURCES.finditer(line)]


@pytest.mark.parametrize("path", TEXT, ids=name)
def test_no_machine_is_named(path: Path) -> None:
    found = {
        number: hits
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (hits := of_a_machine(line))
    }
    assert not found, f"paths, hosts and sources of one machine in {name(path)}: {found}"


@pytest.mark.parametrize(
    "line",
    [
        "cd |home|ann|shoal && make",
        "open('|Users|ann|x')",
        "|builds|a|b.log",
        "https:||packages.corp.net|simple",
        "grpc:||user@cache.corp.net:80",
        "pip install |-index-url x",
        "GOPROXY: direct",
    ],
)
def test_a_planted_machine_is_found(line: str) -> None:
    line = line.replace("|", "/").replace(" /-", " --").replace("Y: ", "Y=")
    assert of_a_machine(line)


def test_little_is_kept_from_the_formatter() -> None:
    mark = "# fmt: skip"
    count = sum(p.read_text().count(mark) for p in PYTHON)
    assert count <= FMT_SKIPS_MAX, f"let the formatter have these lines: {count} {mark!r}"


def test_tests_wait_for_conditions_and_never_sleep() -> None:
    tests = [p for p in PYTHON if "tests" in p.parts and p != Path(__file__)]
    hits = [
        f"{name(p)}:{number}"
        for p in tests
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if SLEEP.search(line)
    ]
    assert not hits, f"wait for the condition (conditions.eventually): {hits}"


def test_unit_tests_use_typed_fakes() -> None:
    """A fake is a class: mypy checks its methods, and a reader sees what it stands for."""
    unit = [p for p in PYTHON if "tests/unit" in name(p) and p != Path(__file__)]
    hits = [name(p) for p in unit if "SimpleNamespace" in p.read_text()]
    assert not hits, f"write a class or a NamedTuple in place of SimpleNamespace: {hits}"


#: A callback that is assigned or appended to an attribute of another object.
WIRED = re.compile(r"(?<!\bself)\.on_\w+(\[.*\])? = |\.on_\w+\.(append|remove)\(")


def test_callbacks_are_passed_to_methods() -> None:
    hits = [
        f"{name(p)}:{number}"
        for p in PYTHON
        if p != Path(__file__)
        for number, line in enumerate(p.read_text().splitlines(), 1)
        if WIRED.search(line)
    ]
    assert not hits, f"pass callbacks to a method, such as `on_step(call)`: {hits}"


@pytest.mark.parametrize(
    "line", ["acks.on_settled = f", "peer.on_close[key] = f", "self.quorum.on_step.append(f)"]
)
def test_a_wired_callback_is_found(line: str) -> None:
    assert WIRED.search(line)


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

"""Mutation tests: do the tests notice when a rule of the product is changed?

A mutant is one change of one place of a module: a comparison swapped, a constant one higher, a
condition negated, a branch or a call left out. It is named by the product's source alone (path,
line, column and operator), so the same sample can be tried before and after a change of the tests:

    mutants.py cover build/before tests/unit tests/model   # which tests run which lines
    mutants.py run build/before build/before.json --rate 0.02 --only 'log|quorum'
    mutants.py compare build/before.json build/after.json
    mutants.py robust --only 'token'                        # mends that are undone, one at a time

`cover` writes PREFIX.coverage, with a context for each test function, and PREFIX.costs.json, and
prints line and branch coverage by package. `run` forks a process for each mutant, which changes the
module as it is imported, and runs the tests of the changed line, the cheapest first, until one
fails. `robust` undoes each mend of `robust_mutants` in a copy of the tree, where brokers of tests
have it, too. No file of the tree itself is changed. `cover` needs coverage (pip install
coverage==7.17.5).

Not cosmic-ray: it writes each mutant into the checkout and runs one command for all of them. Not
mutmut: it leaves out decorated functions, such as properties, and wants one source root.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import robust_mutants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, ModuleType

    from robust_mutants import Undone

ROOT = Path(__file__).resolve().parents[1]
ENGINE, OPERATOR = "broker_image/shoal", "operator/shoal_operator"
#: The modules that hold the semantics, as patterns below `ROOT`, by the name of their part.
PARTS = {
    "share": (f"{ENGINE}/coordinator/share/*.py",),
    "group": (f"{ENGINE}/coordinator/group/**/*.py",),
    "log": (f"{ENGINE}/log/*.py",),
    "quorum": (f"{ENGINE}/quorum/*.py",),
    "operator": tuple(
        f"{OPERATOR}/{name}.py"
        for name in (
            *("brokers/roller", "consumers/scaling", "rebalance/planner", "rebalance/steps"),
            *("brokers/placement", "cluster/racks", "brokers/broker_states"),
            *("cluster/maintenance_windows", "brokers/idle_members", "model/schedules"),
        )
    ),
}
#: CPU seconds of the tests that a mutant gets, by their cost without one; and of their start. A
#: mutant that takes many times as long counts as found.
TESTS_S, START_S, TIMES = 30.0, 20, 6
#: Outcomes of a mutant that a test has found.
CAUGHT = ("killed", "ran too long")
#: What a copy of the tree has, and which of it has packages.
SOURCE_ROOTS = ("broker_image", "operator", "spark_operator_jobs")
COPIED = (
    *SOURCE_ROOTS,
    *("tests", "tools", "bench", "docs", "crds", "helm", "examples", ".github", "pyproject.toml"),
    *("Makefile", "README.md", "CHANGELOG.md", ".ci"),
)
#: The jars of other projects, which are large.
JARS = "tests/compat/lib"
#: pytest's exit code when all tests have passed.
PASSED = 0
#: Seconds for the test of a mend that is undone.
UNDONE_S = 120.0
#: Operators that take each other's place.
PAIRS: tuple[tuple[type, type], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.FloorDiv)),
)
SWAPS = {operator: other for pair in PAIRS for operator, other in (pair, pair[::-1])}


class Mutant(NamedTuple):
    path: str
    line: int
    column: int
    operator: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column} {self.operator}"


def find_operators(node: ast.AST) -> Iterator[str]:
    """Yield the names of the changes that `change` can make to a node."""
    match node:
        case ast.Compare(ops=[one]) if type(one) in SWAPS:
            yield f"{type(one).__name__} to {SWAPS[type(one)].__name__}"
        case ast.BoolOp(op=one) | ast.BinOp(op=one) if type(one) in SWAPS:
            yield f"{type(one).__name__} to {SWAPS[type(one)].__name__}"
        case ast.Constant(value=bool()):
            yield "negate constant"
        case ast.Constant(value=int()):
            yield "one more"
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            pass
        case ast.If(orelse=[]):
            yield from ("negate condition", "drop branch")
        case ast.If() | ast.While() | ast.IfExp():
            yield "negate condition"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None"
        case ast.Expr(value=ast.Call()):
            yield "drop call"


def change(node: Any, operator: str) -> ast.AST:
    """Return the node that takes the place of `node`."""
    match operator:
        case "negate constant":
            return ast.Constant(not node.value)
        case "one more":
            return ast.Constant(node.value + 1)
        case "negate condition":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "drop branch":
            node.body = [ast.Pass()]
        case "return None":
            node.value = ast.Constant(None)
        case "drop call":
            return ast.Pass()
        case _ if isinstance(node, ast.Compare):
            node.ops = [SWAPS[type(node.ops[0])]()]
        case _:
            node.op = SWAPS[type(node.op)]()
    return node


def iterate_places(tree: ast.Module) -> Iterator[Any]:
    """Walk over the nodes that decide something: not over annotations, asserts or errors' texts."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.Assert | ast.Raise | ast.ImportFrom):
            continue
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                children = value if isinstance(value, list) else [value]
                todo += [child for child in children if isinstance(child, ast.AST)]


def find_mutants(path: Path) -> list[Mutant]:
    name = str(path.relative_to(ROOT))
    mutants = {
        Mutant(name, node.lineno, node.col_offset, operator)
        for node in iterate_places(ast.parse(path.read_text()))
        for operator in find_operators(node)
    }
    return sorted(mutants)


def compile_mutant(mutant: Mutant) -> CodeType:
    """Return the compiled module with the change. Raises `LookupError` if its place is gone."""
    path = ROOT / mutant.path

    class Change(ast.NodeTransformer):
        done = False

        def visit(self, node: ast.AST) -> ast.AST:
            place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
            if not self.done and place == mutant[1:3] and mutant.operator in find_operators(node):
                self.done = True
                return change(node, mutant.operator)
            self.generic_visit(node)
            return node

    changed = Change()
    tree = changed.visit(ast.parse(path.read_text()))
    if not changed.done:
        raise LookupError(f"{mutant} is not in the source. Draw a new sample.")
    code: CodeType = compile(ast.unparse(tree), str(path), "exec")
    return code


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with a mutant in it, and leaves all others to Python."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = ".".join(Path(mutant.path).with_suffix("").parts[1:])
        self.path = str(ROOT / mutant.path)
        self.code = compile_mutant(mutant)

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, vars(module))


def read_product_files() -> dict[str, str]:
    """Return the part of each module, by path."""
    return {
        str(path.relative_to(ROOT)): part
        for part, patterns in PARTS.items()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))
    }


def draw(rate: float, seed: int, only: str) -> list[Mutant]:
    """Draw that share of each module's mutants, one at least, where the path matches `only`."""
    sample: list[Mutant] = []
    for name in read_product_files():
        if re.search(only, name) and (some := find_mutants(ROOT / name)):
            count = max(1, round(len(some) * rate))
            sample += random.Random(f"{seed} {name}").sample(some, count)
    return sample


def import_coverage() -> ModuleType:
    try:
        return importlib.import_module("coverage")
    except ImportError:
        sys.exit("mutants.py needs coverage: pip install coverage==7.17.5")


class Contexts:
    """A pytest plugin that names each test function to coverage, and measures its CPU time."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.costs: dict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid.partition("[")[0])
        self.began = _measure_cpu_s()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.costs[nodeid.partition("[")[0]] += _measure_cpu_s() - self.began


def _measure_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def cover(prefix: Path, arguments: Sequence[str]) -> int:
    import pytest

    files = read_product_files()
    data = f"{prefix}.coverage"
    coverage = import_coverage().Coverage(
        data, branch=True, include=[str(ROOT / name) for name in files], config_file=False
    )
    prefix.parent.mkdir(parents=True, exist_ok=True)
    coverage.erase()
    contexts = Contexts(coverage)
    coverage.start()
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], [contexts])
    coverage.stop()
    coverage.save()
    Path(f"{prefix}.costs.json").write_text(json.dumps(contexts.costs))
    with tempfile.NamedTemporaryFile("r") as report:
        coverage.json_report(outfile=report.name)
        summaries = json.load(report)["files"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, summary in summaries.items():
        counts[files[os.path.relpath(name, ROOT)]].update(summary["summary"])
    for part, count in counts.items():
        lines = f"{count['covered_lines']}/{count['num_statements']} lines"
        print(f"{part:9} {lines}, {count['covered_branches']}/{count['num_branches']} branches")
    return int(code)


def find_tests(mutants: Sequence[Mutant], prefix: Path) -> dict[Mutant, tuple[list[str], float]]:
    """Return the tests of each mutant's line, the cheapest first, as long as the time allows, and
    the CPU seconds that they take.

    A line that runs at import has the tests of its whole module.
    """
    data = import_coverage().CoverageData(f"{prefix}.coverage")
    data.read()
    costs: dict[str, float] = json.loads(Path(f"{prefix}.costs.json").read_text())
    chosen: dict[Mutant, tuple[list[str], float]] = {}
    for mutant in mutants:
        by_line = data.contexts_by_lineno(str(ROOT / mutant.path))
        runs = set(by_line.get(mutant.line, ()))
        if "" in runs or _runs_at_import(mutant):
            runs = {test for line in by_line.values() for test in line}
        cost = 0.0
        tests: list[str] = []
        for test in sorted(runs & costs.keys(), key=lambda test: (costs[test], test)):
            if tests and cost + costs[test] > TESTS_S:
                break
            cost += costs[test]
            tests.append(test)
        chosen[mutant] = tests, cost
    return chosen


def _runs_at_import(mutant: Mutant) -> bool:
    functions = (
        node
        for node in ast.walk(ast.parse((ROOT / mutant.path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return not any(
        node.body[0].lineno <= mutant.line <= (node.end_lineno or 0) for node in functions
    )


def attempt(mutant: Mutant, tests: Sequence[str], limit_s: int, seed: int) -> str:
    """Run the tests in a fork of this process; return how they took the mutant."""
    if not tests:
        return "not covered"
    with tempfile.TemporaryDirectory() as directory:
        child = os.fork()
        if not child:
            _run_tests(mutant, tests, Path(directory), limit_s, seed)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return {0: "survived", 5: "no tests"}.get(status, "killed" if status > 0 else "ran too long")


class FirstFailure:
    """A pytest plugin that keeps Hypothesis from looking for smaller failures."""

    def pytest_configure(self) -> None:
        import hypothesis

        profile = hypothesis.settings(
            database=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
        )
        hypothesis.settings.register_profile("mutants", profile)
        hypothesis.settings.load_profile("mutants")


def _run_tests(
    mutant: Mutant, tests: Sequence[str], directory: Path, limit_s: int, seed: int
) -> NoReturn:
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    # Otherwise Hypothesis tries again what other mutants failed with.
    os.environ |= {"HYPOTHESIS_STORAGE_DIRECTORY": str(directory / "examples"), "SEED": str(seed)}
    sys.meta_path.insert(0, Importer(mutant))
    code = 1
    try:
        options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={directory / 'tests'}"]
        options.append(f"--timeout={limit_s * 40}")
        code = int(pytest.main([*options, *tests], [FirstFailure()]))
    finally:
        os._exit(code)


def run(prefix: Path, output: Path, sample: Sequence[Mutant], seed: int) -> None:
    import pytest  # noqa: F401  # Forks have it then.

    outcomes: dict[str, str] = {}
    for mutant, (tests, cost_s) in find_tests(sample, prefix).items():
        began = time.monotonic()
        limit_s = START_S + round(TIMES * cost_s)
        outcomes[str(mutant)] = outcome = attempt(mutant, tests, limit_s, seed)
        print(f"{outcome:12} {time.monotonic() - began:5.1f} s  {mutant}", flush=True)
        output.write_text(json.dumps(outcomes, indent=1))
    show(outcomes)


def show(outcomes: dict[str, str]) -> None:
    files = read_product_files()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, outcome in outcomes.items():
        counts[files[mutant.partition(":")[0]]][outcome] += 1
    for part, count in counts.items():
        print(f"{part:9}", ", ".join(f"{count[name]} {name}" for name in sorted(count)))


class Copy:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Tests that pass without a change.
        self._passing: set[str] = set()
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    root / name,
                    ignore=shutil.ignore_patterns("__pycache__", "node_modules", "lib"),
                )
            elif (ROOT / name).exists():
                shutil.copy2(ROOT / name, root / name)

        if (ROOT / JARS).is_dir():
            (root / JARS).symlink_to(ROOT / JARS)

    def run(self, undone: Undone) -> str:
        """Run the test of a mend without it. Return how it took that."""
        source = (ROOT / undone.path).read_text()
        if source.count(undone.old) != 1:
            return "not in the source"
        if not self._passes(undone.test):
            return "fails anyway"
        path = self.root / undone.path
        path.write_text(source.replace(undone.old, undone.new))
        try:
            return {0: "survived", 1: "killed"}.get(self._run_test(undone.test), "no tests")
        except subprocess.TimeoutExpired:
            return "ran too long"
        finally:
            path.write_text(source)

    def _passes(self, test: str) -> bool:
        """Return whether a test passes without a change."""
        if test not in self._passing:
            try:
                if self._run_test(test) != PASSED:
                    return False
            except subprocess.TimeoutExpired:
                return False
            self._passing.add(test)
        return True

    def _run_test(self, test: str) -> int:
        """Run a test, or those of a file by day. Return pytest's exit code. Raises
        `subprocess.TimeoutExpired`."""
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        if "::" in test:
            options += ["-m", "nightly or not nightly"]
        sources = [str(self.root / name) for name in SOURCE_ROOTS]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, test],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sources)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=UNDONE_S,
            check=False,
        ).returncode


def run_robust(only: str, output: Path | None) -> int:
    """Undo the mends whose rule, file or test matches, one at a time. Return 1 if a test does not
    notice."""
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for undone in robust_mutants.TABLE:
            if not re.search(only, " ".join((undone.rule, undone.path, undone.test))):
                continue
            began_s = time.monotonic()
            outcomes[undone.rule] = outcome = copy.run(undone)
            print(f"{outcome:12} {time.monotonic() - began_s:5.1f} s  {undone.rule}", flush=True)
            if output is not None:
                output.write_text(json.dumps(outcomes, indent=1))
    return int(any(outcome not in CAUGHT for outcome in outcomes.values()))


def compare(before: Path, after: Path) -> int:
    """Print the mutants that were found before and are not now; return 1 if there are any."""
    old, new = (json.loads(path.read_text()) for path in (before, after))
    lost = [mutant for mutant in old if old[mutant] in CAUGHT and new.get(mutant) not in CAUGHT]
    gained = [mutant for mutant in new if new[mutant] in CAUGHT and old.get(mutant) not in CAUGHT]
    for title, some in (("found before only", lost), ("found after only", gained)):
        print(f"{title}: {len(some)}", *some, sep="\n  ")
    return int(bool(lost))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("cover", "run"):
        commands.add_parser(name).add_argument("prefix", type=Path)
    commands.choices["run"].add_argument("output", type=Path)
    commands.choices["run"].add_argument("--only", default="", metavar="REGEX")
    commands.choices["run"].add_argument("--rate", type=float, default=0.02)
    commands.choices["run"].add_argument("--seed", type=int, default=37)
    for name in ("before", "after"):
        (commands.choices.get("compare") or commands.add_parser("compare")).add_argument(
            name, type=Path
        )
    robust = commands.add_parser("robust")
    robust.add_argument("--only", default="", metavar="REGEX")
    robust.add_argument("--output", type=Path)
    options, rest = parser.parse_known_args()
    if options.command == "robust":
        sys.exit(run_robust(options.only, options.output))
    if options.command == "cover":
        sys.exit(cover(options.prefix, rest))
    if options.command == "compare":
        sys.exit(compare(options.before, options.after))
    sample = draw(options.rate, options.seed, options.only)
    run(options.prefix, options.output, sample, options.seed)


if __name__ == "__main__":
    main()

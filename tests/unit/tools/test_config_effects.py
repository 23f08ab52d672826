"""Every config that `docs/configs.md` calls applied has a test that observes its effect.

The checks: the registry names a proof for each config, the test exists, and its code mentions the
config, in itself or in what it uses of its file. Docstrings and comments do not count. Its reviewer
checks that it observes the effect.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from shoal.metadata.config_keys import ConfigEffect
from support.pages.config_effects import BOUNDS, INHERITED, PROOFS, TABLES, Proof

TESTS = Path(__file__).parents[2]
SUPPORT = TESTS / "support"
ALL = [
    (kind, config, proof)
    for kind, rows in PROOFS.items()
    for config, proofs in rows.items()
    for proof in proofs
]


#: Modules that all tests of brokers use, whose code proves nothing about one of them.
GENERAL = ("servers", "conditions", "clusters", "config_effects")


@functools.cache
def definitions(path: str) -> dict[str, tuple[ast.AST, set[str]]]:
    """Return what a test file defines at its top level: code, and the names that it uses."""
    return definitions_in((TESTS / path).read_text())


def definitions_in(text: str) -> dict[str, tuple[ast.AST, set[str]]]:
    found: dict[str, tuple[ast.AST, set[str]]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(_shared_code(node))
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
            without_docstrings(node)
        elif isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            continue
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        used |= {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        if "shared_broker" in used:
            used.add("BROKER_CONFIG")
        for name in names:
            found[name] = (node, used)
    return found


def _shared_code(node: ast.Import | ast.ImportFrom) -> dict[str, tuple[ast.AST, set[str]]]:
    """Return the code of the modules for several files of tests that one imports, by name."""
    found: dict[str, tuple[ast.AST, set[str]]] = {}
    for alias in node.names:
        names = [alias.name]
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, f"{node.module}.{alias.name}"]
        for path in (TESTS / f"{name.replace('.', '/')}.py" for name in names):
            if path.is_relative_to(SUPPORT) and path.is_file() and path.stem not in GENERAL:
                found[alias.asname or alias.name] = (_read_shared(path), set())
    return found


@functools.cache
def _read_shared(path: Path) -> ast.AST:
    tree = ast.parse(path.read_text())
    without_docstrings(tree)
    return tree


@functools.cache
def unparse(node: ast.AST) -> str:
    return ast.unparse(node)


def without_docstrings(node: ast.AST) -> None:
    """Remove the docstring of a function or class, and those of the definitions in it."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if ast.get_docstring(inner, clean=False) is not None:
                del inner.body[0]
            inner.body = inner.body or [ast.Pass()]


def source_of(proof: Proof) -> str:
    """Return the code of the test with everything it uses of its file."""
    known = definitions(proof.path)
    if proof.test not in known:
        raise LookupError(f"there is no {proof.test} in tests/{proof.path}")
    seen: set[str] = set()
    todo = [proof.test]
    while todo:
        name = todo.pop()
        if name in known and name not in seen:
            seen.add(name)
            todo += known[name][1]
    return "\n".join(unparse(known[name][0]) for name in sorted(seen))


def fault(kind: str, config: str, proof: Proof) -> str:
    """Return what is wrong with a proof; empty if nothing is."""
    key = TABLES[kind].get(config)
    if key is None:
        return f"there is no {kind} config {config}"
    if key.effect is not ConfigEffect.APPLIED:
        return f"{config} needs no proof"
    try:
        source = source_of(proof)
    except LookupError as error:
        return str(error)
    named = [w for w in proof.words if re.search(rf"(?<![\w.]){re.escape(w)}", source)]
    named += [w for w in proof.words[2:] if w in source]
    return "" if named else f"tests/{proof.path}::{proof.test} does not mention {config}"


def test_each_proof_is_there_and_names_its_config() -> None:
    faults = [found for row in ALL if (found := fault(*row))]
    assert not faults, "\n".join(faults)


def test_faults_of_proofs_have_names() -> None:
    kind, config, proof = ALL[0]
    accepted = next(n for n, k in TABLES[kind].items() if k.effect is not ConfigEffect.APPLIED)
    assert fault(kind, "no.such", proof) == f"there is no {kind} config no.such"
    assert fault(kind, accepted, proof) == f"{accepted} needs no proof"
    assert "there is no test_x in" in fault(kind, config, proof._replace(test="test_x"))
    assert "does not mention" in fault(kind, config, proof._replace(words=("no.such.word",)))


def test_words_in_docstrings_and_comments_do_not_count() -> None:
    text = '''
@fixture("a.decorator")
def test_some() -> None:
    """a.docstring"""
    # a.comment
    class Inner:
        """an.inner.docstring"""
    assert "a.string"
'''
    node, used = definitions_in(text)["test_some"]
    assert re.findall(r"an?\.[.a-z]+", unparse(node)) == ["a.decorator", "a.string"]
    assert "fixture" in used


@pytest.mark.parametrize("kind", TABLES)
def test_each_applied_config_has_a_proof(kind: str) -> None:
    through = {*INHERITED, *BOUNDS} if kind == "broker" else set()
    missing = [
        name
        for name, key in TABLES[kind].items()
        if key.effect is ConfigEffect.APPLIED and name not in PROOFS[kind] and name not in through
    ]
    assert not missing, f"observe their effect in a test, or call them accepted: {missing}"


def test_heirs_are_applied_themselves() -> None:
    """A broker config has no effect through a config that is not applied."""
    for kind, heir, _ in INHERITED.values():
        assert TABLES[kind][heir].effect is ConfigEffect.APPLIED
        assert heir in PROOFS[kind], heir
    for heir, _ in BOUNDS.values():
        assert heir in PROOFS["group"], heir

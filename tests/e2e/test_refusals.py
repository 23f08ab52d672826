"""What `kubectl apply` refuses, `shoal apply` refuses in the same words: a real API server has all
bad manifests of the suite. By day, `tests/kube/local/test_local_validation.py` asks the API
server's own code for rules and schemas; this has kubectl's and the server's words around them."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from e2e.cluster.layout import REPOSITORY
from e2e.resources import queue_cluster, share_consumer
from e2e.test_topics_and_groups import BAD
from e2e.test_trial import load
from kube.local.test_local_validation import list_bad_manifests, make_applied
from kube.model.test_custom_resources import examples
from shoal_operator.local.commands import apply_app
from shoal_operator.model import names
from support.runs.seeding import SEED
from typer.testing import CliRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster.backend import Cluster

pytestmark = pytest.mark.nightly

Manifest = dict[str, Any]
#: What the two commands answer: the exit code and the errors.
Answer = tuple[int, list[str]]


#: What stands in place of a value of an example, and how many such examples of each kind are sent.
WRONG: tuple[Any, ...] = (
    *(None, True, -5, 10**9, 2.5, "", "Not Valid!", "x" * 300, "2026-13-01"),
    *([], [1], {}, {"a": 1}, [{"a": 1}]),
)
MUTANTS = 100
#: For the scale subresource, the API server looks at replicas once more, beside the schema.
REPLICAS = (-1, 3 * 10**9, 2.5, "three", "", True, [1, "b"], {"b": [True], "a": None}, None)


def list_cases() -> Iterator[tuple[Manifest | None, Manifest]]:
    """Yield manifests with what is stored before them, if it is something."""
    rest = [manifest for manifest, _ in BAD.values()] + [row for row, _ in load("refused")]
    rest += [queue_cluster(replicas=value) for value in REPLICAS]
    rest += [share_consumer(replicas=value) for value in REPLICAS]
    seen = set()
    for case in (*list_bad_manifests(), *rest):
        old, new = case if isinstance(case, tuple) else (None, make_applied(case))
        text = json.dumps([old, new], sort_keys=True)
        if text not in seen:
            seen.add(text)
            yield old, new


def apply_here(folder: Path, manifests: list[Manifest]) -> Answer:
    """Apply manifests to an empty state folder, one after the other; return the last answer."""
    (folder / ".shoal" / "objects").mkdir(parents=True, mode=0o755)
    for manifest in manifests:
        words = ["--filename=-", f"--dir={folder}"]
        done = CliRunner().invoke(apply_app, words, input=json.dumps(manifest))
    return done.exit_code, list_errors(done.stderr)


def list_errors(text: str) -> list[str]:
    """Return the errors without kubectl's warnings, each line by itself, sorted: the API server
    orders violations as maps of Go are."""
    return sorted(line for line in text.splitlines() if not line.startswith("Warning: "))


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> Cluster:
    """The cluster, with the custom resource definitions."""
    force = ("--server-side", "--force-conflicts")
    cluster.kubectl("apply", *force, f"--filename={REPOSITORY / 'crds'}")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return cluster


def test_both_refuse_in_the_same_words(
    definitions: Cluster, namespace: str, tmp_path: Path
) -> None:
    """kubectl starts for each of 250 manifests, which takes a minute."""
    cluster = definitions
    cases = [
        [
            {**m, "metadata": {**m["metadata"], "namespace": namespace}}
            for m in case
            if m is not None
        ]
        for case in list_cases()
    ]

    def ask(manifests: list[Manifest]) -> Answer:
        for manifest in manifests[:-1]:
            cluster.kubectl("apply", "--filename=-", stdin_text=json.dumps(manifest))
        words = ("apply", "--dry-run=server", "--filename=-")
        text = json.dumps(manifests[-1])
        done = cluster.kubectl(*words, stdin_text=text, check=False)
        for manifest in manifests[:-1]:
            cluster.kubectl("delete", "--filename=-", stdin_text=json.dumps(manifest))
        return done.returncode, list_errors(done.stderr)

    cases.sort(key=len)
    ours = [apply_here(tmp_path / str(number), case) for number, case in enumerate(cases)]
    # Pairs store something under names that others have.
    with ThreadPoolExecutor(4) as pool:
        theirs = list(pool.map(ask, (case for case in cases if len(case) == 1)))
    theirs += [ask(case) for case in cases if len(case) > 1]
    different = {
        json.dumps(case[-1]): {"shoal": here, "kubectl": there}
        for case, here, there in zip(cases, ours, theirs, strict=True)
        if here != there
    }
    assert not different, json.dumps(different, indent=1)
    assert sum(code for code, _ in theirs) > 180


def mutate(value: Any) -> Iterator[Any]:
    """Yield a value with one part of it wrong, absent, unknown or repeated."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: changed} for changed in mutate(item))
            yield {other: kept for other, kept in value.items() if other != name}
            yield {**value, f"{name}x": item}
    elif isinstance(value, list) and value:
        yield from ([changed, *value[1:]] for changed in mutate(value[0]))
        yield [*value, value[0]]
    yield from WRONG


def draw_mutants(namespace: str) -> list[Manifest]:
    """Return examples of all kinds with something wrong, each with a name of its own."""
    by_kind: dict[str, list[Manifest]] = {}
    for _, manifest in examples():
        if manifest["apiVersion"] == names.API_VERSION:
            specs = [{**manifest, "spec": spec} for spec in mutate(manifest["spec"])]
            by_kind.setdefault(manifest["kind"], []).extend(specs)
    draws = random.Random(SEED)
    drawn = [
        m for of_kind in by_kind.values() for m in draws.sample(of_kind, min(MUTANTS, len(of_kind)))
    ]
    return [
        {**mutant, "metadata": {"name": f"m-{number}", "namespace": namespace}}
        for number, mutant in enumerate(drawn)
    ]


def test_examples_with_one_wrong_value_are_refused_alike(
    definitions: Cluster, namespace: str, tmp_path: Path
) -> None:
    """Of several refused manifests, kubectl prints the violations of each in brackets, in one
    line. Those of `shoal apply` have lines of their own, as kubectl has for a single manifest."""
    mutants = draw_mutants(namespace)
    text = "\n---\n".join(map(json.dumps, mutants))
    words = ("apply", "--dry-run=server", "--filename=-")
    theirs = definitions.kubectl(*words, stdin_text=text, check=False).stderr
    (tmp_path / ".shoal" / "objects").mkdir(parents=True, mode=0o755)
    ours = CliRunner().invoke(apply_app, ["--filename=-", f"--dir={tmp_path}"], input=text).stderr
    begins = r"\n(?=Error from server|The \w+ \"m-|Warning: )"
    in_brackets = re.compile(
        r'Error from server \(Invalid\): error when creating "STDIN": \w+\.shoal\.dev "(m-\d+)" '
        r"is invalid: (.*)",
        re.DOTALL,
    )
    kubectl, others = {}, []
    for line in re.split(begins, theirs.rstrip("\n")):
        if match := in_brackets.fullmatch(line):
            kubectl[match[1]] = match[2]
        elif not line.startswith("Warning: "):
            others.append(line)
    shoal = {}
    for line in re.split(begins, ours.rstrip("\n")):
        if match := re.fullmatch(r'The \w+ "(m-\d+)" is invalid: (.*)', line, re.DOTALL):
            violations = match[2].removeprefix("\n* ").split("\n* ")
            shoal[match[1]] = violations
        else:
            assert line in others
            others.remove(line)
    assert not others
    different = {
        name: [shoal.get(name), kubectl.get(name)]
        for name in shoal.keys() | kubectl.keys()
        if not is_same(shoal.get(name, []), kubectl.get(name, ""))
    }
    assert not different, json.dumps(different, indent=1)
    assert len(kubectl) > len(mutants) / 3


def is_same(violations: list[str], text: str) -> bool:
    """Return whether a text has all violations, in any order, and nothing else."""
    if len(violations) == 1:
        return violations == [text]
    length = len("[]") + len(", ".join(violations))
    return len(text) == length and all(violation in text for violation in violations)

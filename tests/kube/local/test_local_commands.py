"""`get`, `describe`, `apply` and `delete` of `shoal up` against a state folder: kubectl's words. No
process runs. The errors are those of kubectl 1.35."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local.api import LocalApi
from shoal_operator.local.changes import apply_manifests
from shoal_operator.local.commands import apply_app, delete_app
from shoal_operator.local.reading import describe_app, get_app, logs_app
from shoal_operator.local.state_folder import StateFolder
from support.brokers.local_up import make_queue
from typer.testing import CliRunner, Result

if TYPE_CHECKING:
    from pathlib import Path

APPS = {
    "get": get_app,
    "describe": describe_app,
    "logs": logs_app,
    "apply": apply_app,
    "delete": delete_app,
}
SETTINGS = """\
apiVersion: v1
kind: Secret
metadata: {name: login}
data: {user: YQ==, password: Yg==}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {level: high}
"""


class Shell:
    """Runs commands in a folder of manifests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._runner = folder, CliRunner()
        self.api = LocalApi(StateFolder(folder / ".shoal").objects)
        cluster, topic, group, *_ = make_queue(["true"])
        other = {**topic, "metadata": {"name": "more"}}
        wanted: list[dict[str, Any]] = [cluster, topic, other, group]
        for manifest in wanted:
            manifest["metadata"] = {"namespace": "default", **manifest["metadata"]}
        assert apply_manifests(self.api, wanted).errors == []
        (folder / "settings.yaml").write_text(SETTINGS)

    def run(self, words: str, stdin: str = "") -> Result:
        return self.invoke(*words.split(), stdin=stdin)

    def invoke(self, verb: str, *words: str, stdin: str = "") -> Result:
        return self._runner.invoke(APPS[verb], [*words, f"--dir={self.folder}"], input=stdin)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


SLASHES = "error: arguments in resource/name form may not have more than one slash"
UNNAMED = "error: resource(s) were provided, but no name was specified"
UNKNOWN = "error: the server doesn't have a resource type "


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("delete all", UNNAMED),
        ("delete qt,sg", UNNAMED),
        ("delete qt", UNNAMED),
        ("delete all jobs", "error: you must specify only one resource"),
        ("delete", "error: You must provide one or more resources by argument or filename."),
        ("delete qt jobs -f a.yaml", "error: when paths, URLs, or stdin is provided as input, you"),
        ("delete queues jobs", f'{UNKNOWN}"queues"'),
        ("delete qt/jobs more", "error: there is no need to specify a resource type as a separate"),
        ("delete -f none.yaml", 'error: the path "none.yaml" does not exist'),
        ("get qt/jobs/more", SLASHES),
        ("get qt/", "error: arguments in resource/name form must have a single resource and name"),
        ("get", "You must specify the type of resource to get. "),
        ("get qt -o table", 'error: unable to match a printer suitable for the output format "tab'),
        ("get qt,queues", f'{UNKNOWN}"queues"'),
        ("describe", "error: You must specify the type of resource to describe. "),
        ("describe qt none", 'Error from server (NotFound): queuetopics.shoal.dev "none" not fo'),
        ("get qt jobs -A", "error: a resource cannot be retrieved by name across all namespaces"),
        ("get qt jobs -l a=b", "error: name cannot be provided when a selector is specified"),
        ("get qt/jobs -l a", "error: selectors and the all flag cannot be used when passing resou"),
        ("describe qt -l a==b==c", "error: unable to parse requirement: 'a==b==c'"),
        ("delete qt jobs --all", "error: name cannot be provided when a selector is specified"),
        ("delete qt --all -l a", "error: cannot set --all and --selector at the same time"),
        ("delete --all", "error: You must provide one or more resources by argument or filename."),
        ("delete qt -A", UNNAMED),
        ("apply", "error: must specify --filename (-f)"),
        ("logs jobs", 'error: there is no ShareConsumer, QueueCluster or Pod "jobs" in namespace'),
        ("logs main", 'error: no logs of "main": it has not run yet. Wait for them with --follow.'),
    ],
)
def test_what_kubectl_refuses_is_refused_in_its_words(shell: Shell, words: str, error: str) -> None:
    done = shell.run(words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(error)
    assert len(LocalApi(StateFolder(shell.folder / ".shoal").objects).objects) == 4


@pytest.mark.parametrize("words", ["get qt jobs none more", "get qt/jobs qt/none qt/more"])
def test_several_names_are_shown_and_missing_ones_named(shell: Shell, words: str) -> None:
    done = shell.run(f"{words} -o name")
    assert done.stdout.split() == ["queuetopic.shoal.dev/jobs", "queuetopic.shoal.dev/more"]
    missing = 'Error from server (NotFound): queuetopics.shoal.dev "none" not found\n'
    assert (done.exit_code, done.stderr) == (1, missing)


@pytest.fixture
def labelled(shell: Shell) -> Shell:
    """With topics in two namespaces, each with a label of its name."""
    for namespace, name in (("default", "a"), ("default", "b"), ("other", "a")):
        metadata = {"namespace": namespace, "name": name, "labels": {"app": name}}
        topic = {**make_queue(["true"])[1], "metadata": metadata}
        assert apply_manifests(shell.api, [topic]).errors == []
    return shell


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app", "ab"),
        ("!app", ["jobs", "more"]),
        ("app=a", "a"),
        ("app==b", "b"),
        ("app!=a", ["b", "jobs", "more"]),
        ("app,app!=a", "b"),
        ("app in (a,c)", "a"),
        ("app in (b, a)", "ab"),
        ("app notin (a)", ["b", "jobs", "more"]),
        ("app in (a,b),app=b", "b"),
    ],
)
def test_labels_choose_resources(labelled: Shell, selector: str, names: list[str]) -> None:
    done = labelled.invoke("get", "qt", "-o", "name", "-l", selector)
    assert done.stdout.split() == [f"queuetopic.shoal.dev/{name}" for name in names]


def test_all_namespaces_are_shown_with_their_names(labelled: Shell) -> None:
    head, *rows = labelled.run("get qt -A -l app").stdout.splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"]
    assert [row.split()[:2] for row in rows] == [["default", "a"], ["default", "b"], ["other", "a"]]
    assert labelled.run("describe qt -A -l app=a").stdout.count("Name:         a\n") == 2
    assert labelled.run("get qt -A -l none").stderr == "No resources found\n"
    assert labelled.run("get qt -n none").stderr == "No resources found in none namespace.\n"


def test_delete_takes_what_labels_choose_or_all(labelled: Shell) -> None:
    done = labelled.run("delete qt -A -l app=a")
    assert done.stdout.splitlines() == [
        'queuetopic.shoal.dev "a" deleted from default namespace',
        'queuetopic.shoal.dev "a" deleted from other namespace',
    ]
    assert labelled.run("delete qt -l app=a").stderr == "No resources found\n"
    done = labelled.run("delete qt,sg --all")
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        '"b"',
        '"jobs"',
        '"more"',
        '"workers"',
    ]
    assert labelled.run("get qt,sg").stderr == "No resources found in default namespace.\n"


def test_the_begin_of_a_name_is_enough_for_describe(shell: Shell) -> None:
    assert shell.run("describe qt mo").stdout.startswith("Name:         more\n")
    assert shell.run("get qt mo").exit_code == 1


def test_kinds_with_a_name_are_pairs(shell: Shell) -> None:
    done = shell.run("delete qt,sg workers")
    assert done.stdout == 'sharegroup.shoal.dev "workers" deleted from default namespace\n'
    missing = 'Error from server (NotFound): queuetopics.shoal.dev "workers" not found\n'
    assert (done.exit_code, done.stderr) == (1, missing)
    assert shell.run("delete qt,sg workers --ignore-not-found").exit_code == 0


@pytest.mark.parametrize(("file", "stdin"), [("settings.yaml", ""), ("-", SETTINGS)])
def test_what_apply_took_delete_takes(shell: Shell, file: str, stdin: str) -> None:
    path = file if stdin else str(shell.folder / file)
    assert shell.run(f"apply -f {path}", stdin).stdout == (
        "secret/login created\nconfigmap/settings created\n"
    )
    deleted = shell.run(f"delete -f {path}", stdin)
    assert (deleted.exit_code, deleted.stdout) == (
        0,
        'secret "login" deleted from default namespace\n'
        'configmap "settings" deleted from default namespace\n',
    )
    again = shell.run(f"delete -f {path}", stdin)
    assert again.stderr.splitlines() == [
        'Error from server (NotFound): secrets "login" not found',
        'Error from server (NotFound): configmaps "settings" not found',
    ]


def test_a_file_that_cannot_be_read_keeps_no_other_from_apply(shell: Shell) -> None:
    more = shell.folder / "more"
    more.mkdir()
    (more / "bad.yaml").write_text("nonsense: [")
    (more / "settings.yaml").write_text(SETTINGS)
    done = shell.run(f"apply -f {more}")
    assert (done.exit_code, done.stdout.count(" created\n")) == (1, 2)
    assert done.stderr.startswith(f"error: error parsing {more / 'bad.yaml'}: line 1: ")
    (more / "settings.yaml").unlink()
    assert shell.run(f"apply -f {more}").stderr == done.stderr
    (more / "bad.yaml").write_text("")
    assert shell.run(f"apply -f {more}").stderr == "error: no objects passed to apply\n"


def test_kinds_of_kubernetes_have_kubectls_columns(shell: Shell) -> None:
    shell.run(f"apply -f {shell.folder / 'settings.yaml'}")
    head, row = shell.run("get secrets").stdout.splitlines()
    assert head.split() == "NAME TYPE DATA AGE".split()
    assert row.split()[:-1] == ["login", "Opaque", "2"]
    assert "settings" in shell.run("get cm").stdout
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {"ready": False, "restartCount": 3, "state": state}
    pod = {"apiVersion": "v1", "metadata": {}, "spec": {"containers": [{"name": "c"}]}}
    pod["status"] = {"phase": "Running", "containerStatuses": [status]}
    shell.api.write(("Pod", "default", "p-0"), pod)
    head, row = shell.run("get pods").stdout.splitlines()
    assert head.split() == "NAME READY STATUS RESTARTS AGE".split()
    assert row.split()[:-1] == ["p-0", "0/1", "CrashLoopBackOff", "3"]
    for _ in range(2):
        shell.api.warn(shell.api.objects["Pod", "default", "p-0"], "Bad", "it is")
    head, row = shell.run("get events").stdout.splitlines()
    assert head.split() == "LAST SEEN TYPE REASON OBJECT MESSAGE".split()
    assert row.split()[1:] == ["Warning", "Bad", "pod/p-0", "it", "is"]
    assert "(x2 over " in shell.run("describe pod p-0").stdout
    assert "settings" not in shell.run("get all").stdout

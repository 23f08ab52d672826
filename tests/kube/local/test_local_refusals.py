"""Manifests that `shoal up` cannot take: what says so, and what goes on. No process runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local import commands
from shoal_operator.local.addresses import LocalLoop
from shoal_operator.local.api import LocalApi
from shoal_operator.local.changes import apply_manifests
from shoal_operator.local.manifests import load_folder
from shoal_operator.local.state_folder import StateFolder
from shoal_operator.local.up import Up
from support.brokers.local_up import make_queue, write_manifests
from support.runs.conditions import eventually_async

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_operator.local.api import Key
    from shoal_operator.local.manifests import Folder

Manifest = dict[str, Any]
CLUSTER, TOPIC = make_queue(["true"])[:2]
HEAD = "apiVersion: shoal.dev/v1beta1\nkind: QueueTopic\nmetadata: {name: jobs}\n"


def apply_folders(state: Path, *folders: Folder) -> dict[Key, Manifest]:
    """Apply what a folder had at several times, without an operator; return the objects."""

    async def run() -> dict[Key, Manifest]:
        up = Up(StateFolder(state), state, lambda *_: None)
        for folder in folders:
            up.apply_folder(folder)
        await up.machine.stop()
        return up.api.objects

    with asyncio.Runner(loop_factory=LocalLoop) as runner:
        return runner.run(run())


def list_warnings(objects: dict[Key, Manifest]) -> list[tuple[str, str, str, int]]:
    """Return the warnings: about which kind, the reason, the message, and how often."""
    return [
        (event["involvedObject"]["kind"], event["reason"], event["message"], event["count"])
        for (kind, _, _), event in objects.items()
        if kind == "Event" and event["type"] == "Warning"
    ]


def load_edits(folder: Path, *edits: tuple[str, str]) -> list[Folder]:
    """Return a folder with a cluster and a topic, and the same after each edit of a file."""
    write_manifests(folder, [CLUSTER], "1.yaml")
    write_manifests(folder, [TOPIC], "2.yaml")
    loaded = [load_folder([folder])]
    for name, text in edits:
        (folder / name).write_text(text)
        loaded.append(load_folder([folder], loaded[-1]))
    return loaded


def test_a_refused_manifest_is_an_event_of_the_stored_resource(tmp_path: Path) -> None:
    none = HEAD + "spec: {cluster: main, partitions: 0}\n"
    edits = load_edits(tmp_path, ("2.yaml", none))
    objects = apply_folders(tmp_path / ".shoal", *edits, edits[-1])
    ((kind, reason, message, count),) = list_warnings(objects)
    assert (kind, reason, count) == ("QueueTopic", "ManifestRefused", 2)
    assert message.startswith(
        'The QueueTopic "jobs" is invalid: * spec.partitions: Invalid value: 0'
    )
    assert objects["QueueTopic", "default", "jobs"]["spec"]["partitions"] == 2


def test_a_refused_manifest_of_a_new_resource_is_an_event_of_its_cluster(tmp_path: Path) -> None:
    new = HEAD.replace("jobs", "new") + "spec: nonsense\n"
    objects = apply_folders(tmp_path / ".shoal", *load_edits(tmp_path, ("3.yaml", new)))
    ((kind, reason, message, _),) = list_warnings(objects)
    assert (kind, reason) == ("QueueCluster", "ManifestRefused")
    assert message.startswith('The QueueTopic "new" is invalid: * spec: Invalid value: "string"')


def test_an_unreadable_file_is_an_event_and_changes_of_others_are_applied(tmp_path: Path) -> None:
    """What the file had stays, and goes when the file does."""
    other = HEAD.replace("jobs", "other") + "spec: {cluster: main}\n"
    edits = load_edits(tmp_path, ("2.yaml", "a: 1\nnonsense: [\n"), ("3.yaml", other))
    objects = apply_folders(tmp_path / ".shoal", *edits)
    file = tmp_path / "2.yaml"
    message = f"error parsing {file}: line 3: expected the node content, but found '<stream end>'"
    assert list_warnings(objects) == [("QueueTopic", "ManifestUnreadable", message, 2)]
    assert {("QueueTopic", "default", name) for name in ("jobs", "other")} <= objects.keys()
    file.unlink()
    objects = apply_folders(tmp_path / ".shoal", load_folder([tmp_path], edits[-1]))
    assert ("QueueTopic", "default", "jobs") not in objects


def test_an_unreadable_file_at_the_start_deletes_nothing_that_it_may_have_had(
    tmp_path: Path,
) -> None:
    """What another file no longer has stays, too: the unreadable one may have it now."""
    state, both = tmp_path / ".shoal", load_edits(tmp_path)[0]
    apply_folders(state, both)
    (tmp_path / "2.yaml").write_text("nonsense: [")
    objects = apply_folders(state, load_folder([tmp_path]))
    assert [(kind, reason) for kind, reason, _, _ in list_warnings(objects)] == [
        ("QueueCluster", "ManifestUnreadable")
    ]
    assert ("QueueTopic", "default", "jobs") in objects
    (tmp_path / "2.yaml").unlink()
    objects = apply_folders(state, load_folder([tmp_path]))
    assert ("QueueTopic", "default", "jobs") not in objects


def test_files_are_followed_again_once_the_disk_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was applied cannot be noted at first: a folder has the name of the note."""
    monkeypatch.setattr(commands, "FOLLOW_SECONDS", 0.01)
    (folder,) = load_edits(tmp_path)
    state = tmp_path / ".shoal"
    note = state / "applied.json"
    note.mkdir(parents=True)

    async def run() -> None:
        up = Up(StateFolder(state), state, lambda *_: None)
        following = asyncio.create_task(commands._follow_files([tmp_path], folder, up))  # noqa: SLF001
        await asyncio.sleep(0)  # It has looked at the files.
        write_manifests(tmp_path, [CLUSTER], "3.yaml")
        await eventually_async(lambda: up.api.find("QueueCluster", "default", "main"))
        note.rmdir()
        await eventually_async(note.is_file)
        following.cancel()
        await up.machine.stop()

    with asyncio.Runner(loop_factory=LocalLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"kind: Secret\n", "apiVersion not set"),
        (b"\xff\xfe\x00a", "can't decode byte 0xff"),
        (b"a: &a [*a]\n", "Circular reference detected"),
        (b"a: !!binary aGk=\n", "bytes is not JSON serializable"),
        (b"a: " + b"[" * 500, "nested too deeply"),
        (b'a: "\\ud800"\n', "surrogates not allowed"),
        (b"apiVersion: v1\nkind: List\nitems: 5\n", "a document that is no object"),
        (HEAD.replace("jobs", "jobs, namespace: {}").encode(), "metadata.namespace is no text"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: bytes, error: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(text)
    folder = load_folder([tmp_path])
    assert folder.manifests == []
    assert error in folder.errors[file]
    assert str(file) in folder.errors[file]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"spec": 5}, "spec in body must be of type object"),
        ({"metadata": {"labels": 5}}, "metadata.labels in body must be of type object"),
        ({"metadata": {"annotations": {"a": 5}}}, "metadata.annotations.a in body must be of"),
        ({"metadata": {"namespace": "a/b"}}, "metadata.namespace: Invalid value"),
        ({"metadata": {"finalizers": 5}}, "metadata.finalizers in body must be of type array"),
        ({"metadata": {"ownerReferences": [{}]}}, "metadata.ownerReferences[0].uid: Required"),
        ({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "../../x"}}, "metadata.name"),
        ({"kind": "Secret", "apiVersion": "v1", "data": {"a": "no"}}, "data.a: Invalid value"),
        ({"kind": "ConfigMap", "apiVersion": "v1", "data": {"a/b": ""}}, "a valid config key must"),
        ({"kind": "Secret", "apiVersion": "v1", "stringData": {"..": ""}}, "must not start with '"),
    ],
)
def test_nonsense_in_a_manifest_is_refused(tmp_path: Path, more: Manifest, error: str) -> None:
    meta = {"name": "jobs", **more.get("metadata", {})}
    write_manifests(tmp_path, [{**TOPIC, **more, "metadata": meta}])
    outcome = apply_manifests(LocalApi(tmp_path / "objects"), load_folder([tmp_path]).manifests)
    assert outcome.lines == []
    assert error in outcome.errors[0]


def test_yaml_means_what_it_means_to_kubectl(tmp_path: Path) -> None:
    """Dates and keys are texts, and an empty field is none."""
    text = HEAD.replace("jobs", "jobs, labels: ") + "spec: {config: {1: 2026-99-99}}\n"
    (tmp_path / "a.yaml").write_text(text)
    (topic,) = load_folder([tmp_path]).manifests
    assert topic["metadata"] == {"namespace": "default", "name": "jobs"}
    assert topic["spec"] == {"config": {"1": "2026-99-99"}}

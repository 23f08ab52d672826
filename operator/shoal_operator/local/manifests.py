"""Manifests from files, as `kubectl apply` takes them, and what options of `shoal up` change."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from shoal_operator.local.definitions import load_definitions
from shoal_operator.model.listeners import INTERNAL
from shoal_operator.model.node_pools import EPHEMERAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from shoal_operator.model.names import Manifest

NAMESPACE = "default"
SUFFIXES = (".yaml", ".yml", ".json")
#: The name of standard input.
STDIN = Path("-")
#: Kinds of Kubernetes that are stored, because pods read them.
STORED = ("Secret", "ConfigMap")
#: Fields about logins and certificates, which `--plaintext` leaves out.
_OF_LOGINS: Mapping[str, tuple[str, ...]] = {
    "QueueCluster": ("authorization", "metrics.tls", "superUsers"),
    "ShareConsumer": ("user", "userSecret"),
    "Redrive": ("user",),
    "QueueSchedule": ("user",),
}
#: What `--brokers` limits: numbers of replicas, and ends of the names of configs with such numbers.
_NUMBERS_OF_REPLICAS = {"QueueTopic": ("replicas",), "ShareGroup": ("deadLetters.create.replicas",)}
_CONFIGS_OF_REPLICAS = ("replication.factor", "min.isr", "min.insync.replicas")
#: Fields of a QueueCluster by which it has more brokers than `replicas`.
_FURTHER_BROKERS = ("brokersPerPod", "nodePools")


class BadManifest(Exception):
    """A path without manifests; the message names it."""


@dataclass
class Folder:
    """What the files of `-f` contain: resources to apply, and objects that are not for here."""

    #: The resources by their file.
    files: dict[Path, list[Manifest]] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    #: What is wrong with files that cannot be read. In `files` they have what they had before.
    errors: dict[Path, str] = field(default_factory=dict)

    @property
    def manifests(self) -> list[Manifest]:
        """The resources in the order of their files."""
        return [manifest for of_file in self.files.values() for manifest in of_file]

    @property
    def sources(self) -> list[str]:
        """The file of each of `manifests`, as kubectl names it in errors."""
        return [
            "STDIN" if file == STDIN else str(file)
            for file, of_file in self.files.items()
            for _ in of_file
        ]


def list_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files that `-f` names: a file, or those of a folder in the order of their names.
    Raises `BadManifest`."""
    files = []
    for path in paths:
        if path.is_dir():
            in_folder = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES and p.is_file())
            if not in_folder:
                raise BadManifest(f"{path} has no files that end with {', '.join(SUFFIXES)}")
            files += in_folder
        elif path.is_file() or path == STDIN:
            files.append(path)
        else:
            raise BadManifest(f'the path "{path}" does not exist')
    return files


def load_folder(paths: Iterable[Path], former: Folder | None = None) -> Folder:
    """Return the manifests in files and folders. A file that cannot be read has those of `former`.
    Raises `BadManifest`."""
    folder, kinds = Folder(), load_definitions()
    for file in list_files(paths):
        folder.files[file] = own = []
        try:
            loaded = list(_load_file(file))
        except BadManifest as error:
            folder.errors[file] = str(error)
            own += former.files.get(file, []) if former else []
            continue
        for manifest in loaded:
            if manifest["kind"] in kinds or manifest["kind"] in STORED:
                meta = {n: v for n, v in manifest["metadata"].items() if v is not None}
                own.append({**manifest, "metadata": {"namespace": NAMESPACE, **meta}})
            else:
                folder.foreign.append(f"{manifest['kind'].lower()}/{manifest['metadata']['name']}")
    return folder


class _Loader(yaml.SafeLoader):
    """Reads YAML as kubectl does, to which dates are texts."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _convert_to_json(document: Any) -> Any:
    """Return a YAML document as the JSON that kubectl would send, whose keys are texts. Raises
    `TypeError` and `ValueError` for what JSON does not have."""
    return json.loads(json.dumps(document, ensure_ascii=False).encode())


def _describe_error(error: Exception) -> str:
    """Return in one line what keeps a file from being read."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark and error.problem:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(error).split())


def _read_text(file: Path) -> str:
    return sys.stdin.read() if file == STDIN else file.read_text()


def _load_file(file: Path) -> Iterator[Manifest]:
    try:
        documents = list(map(_convert_to_json, yaml.load_all(_read_text(file), _Loader)))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise BadManifest(f"error parsing {file}: {_describe_error(error)}") from None
    for document in documents:
        if document is None:
            continue
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        items = (document.get("items") or []) if is_list else [document]
        for manifest in items if isinstance(items, list) else [items]:
            if not isinstance(manifest, dict):
                raise BadManifest(f"error parsing {file}: it has a document that is no object")
            for name in ("apiVersion", "kind"):
                if not isinstance(manifest.get(name), str):
                    raise BadManifest(f"error validating {file}: {name} not set")
            meta = manifest.get("metadata")
            if not isinstance(meta, dict) or not isinstance(meta.get("name"), str):
                raise BadManifest(f"error when reading {file}: resource name may not be empty")
            if not isinstance(meta.get("namespace"), str | None):
                raise BadManifest(f"error when reading {file}: metadata.namespace is no text")
            yield manifest


class Overrides(NamedTuple):
    """What options of `shoal up` say instead of the manifests."""

    brokers: int | None = None
    plaintext: bool = False
    #: Whether consumers with an image of their own run with Docker.
    containers: bool = False

    def change(self, manifest: Manifest) -> tuple[Manifest | None, list[str]]:
        """Return a manifest as it is applied, None if it is left out, and lines that say what of it
        does not go with the options."""
        kind, spec = manifest["kind"], copy.deepcopy(manifest.get("spec"))
        if self.plaintext and kind == "QueueUser":
            return None, ["not with --plaintext: nobody logs in"]
        if not isinstance(spec, dict):
            return manifest, []  # The schema refuses it, or it is a Secret.
        notes = []
        if self.brokers is not None:
            listed = sorted(_fit_brokers(kind, spec, self.brokers))
            notes = [f"not with --brokers {self.brokers}: {', '.join(listed)}"] if listed else []
        if self.plaintext:
            paths = [path for path in _OF_LOGINS.get(kind, ()) if _get(spec, path) is not None]
            for path in paths:
                _drop(spec, path)
            if paths:
                notes.append(f"not with --plaintext: {', '.join(f'spec.{path}' for path in paths)}")
            if kind == "QueueCluster":
                spec["listeners"] = [_make_plain_listener(spec.get("listeners"))]
        return {**manifest, "spec": spec}, notes


def _fit_brokers(kind: str, spec: Manifest, brokers: int) -> Iterator[str]:
    """Let a spec go with so many brokers; yield the paths of what needs more of them."""
    for path in _NUMBERS_OF_REPLICAS.get(kind, ()):
        parent, _, name = path.rpartition(".")
        section = _get(spec, parent) if parent else spec
        if (
            isinstance(section, dict)
            and isinstance(section.get(name), int)
            and section[name] > brokers
        ):
            section[name] = brokers
            yield f"spec.{path}"
    configs = _get(spec, "config")
    configs = configs if isinstance(configs, dict) else {}
    for name, value in configs.items():
        number = int(value) if f"{value}".isdecimal() else 0
        if f"{name}".endswith(_CONFIGS_OF_REPLICAS) and number > brokers:
            configs[name] = str(brokers)
            yield f"spec.config[{name}]"
    if kind == "QueueCluster":
        spec["replicas"] = brokers
        yield from (f"spec.{name}" for name in _FURTHER_BROKERS if spec.pop(name, None) is not None)
        if _get(spec, "storage.type") == EPHEMERAL:
            # The schema wants three brokers for it.
            _drop(spec, "storage.type")
            yield "spec.storage.type"


def _make_plain_listener(listeners: Any) -> Manifest:
    """Return a listener without TLS and logins, with name and port of the first one for here."""
    inner = [
        listener
        for listener in (listeners if isinstance(listeners, list) else ())
        if isinstance(listener, dict) and listener.get("type", INTERNAL) == INTERNAL
    ]
    first = inner[0] if inner else {"name": "plain", "port": 9092}
    plain = {"tls": {"enabled": False}, "authentication": {"type": "none"}}
    return {name: first[name] for name in ("name", "port") if name in first} | plain


def _get(spec: Any, path: str) -> Any:
    """Return a field of a spec, None without it."""
    for name in path.split("."):
        spec = spec.get(name) if isinstance(spec, dict) else None
    return spec


def _drop(spec: Any, path: str) -> None:
    *parents, last = path.split(".")
    for name in parents:
        spec = spec[name]
    del spec[last]

"""The commands `get`, `describe` and `logs`: they ask a running `shoal up`, or read its folder.

`commands` has those that change something. These load neither the operator nor the validation.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from shoal.cli.session import CommandError
from shoal.cli.terminal import say

from shoal_operator.local import manifests, printing, state_folder
from shoal_operator.local.addresses import Addresses
from shoal_operator.local.api import dump_yaml
from shoal_operator.local.requests import read_objects
from shoal_operator.local.targets import (
    KubectlRefusal,
    ResourceTarget,
    Scope,
    is_wanted,
    list_matching,
    make_scope,
    parse_targets,
    run_as_kubectl,
    select,
)

if TYPE_CHECKING:
    from shoal_operator.local.api import Key
    from shoal_operator.local.definitions import Definition
    from shoal_operator.local.state_folder import StateFolder

Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        envvar="SHOAL_UP_DIR",
        help="The folder of `shoal up`. Default: this one, or the nearest one above.",
    ),
]
ResourceArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RESOURCE",
        help="`KIND`, `KIND,KIND`, `KIND NAME...` or `KIND/NAME...`; the kind `all` is all kinds "
        "of Shoal.",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="The namespace of the resource.")]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Resources of all namespaces.")
]
Selector = Annotated[
    str,
    typer.Option(
        "--selector", "-l", metavar="LABELS", help="Those with labels: `a=b,c!=d,e in (f,g),h,!i`."
    ),
]
HERE = Path()
_KINDS = "`shoal get all` shows those of all kinds."
#: Seconds between looks at logs that are followed.
_LOOK_SECONDS = 0.1
#: The kinds of which `logs` prints something.
_WITH_LOGS = ("ShareConsumer", "QueueCluster", "Pod")


def make_app() -> typer.Typer:
    """Return an application with plain help and plain tracebacks."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


get_app, describe_app, logs_app = make_app(), make_app(), make_app()


def find_state(directory: Path) -> StateFolder:
    state = state_folder.find(directory.resolve())
    if state is None:
        raise CommandError(
            f"there is no `shoal up` in {directory.resolve()} or above it. Start one with "
            "`shoal up -f FOLDER`, or name its folder with --dir."
        )
    return state


# get, describe


@get_app.command()
def get(
    words: ResourceArguments = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FORMAT", help="yaml, json, wide or name.")
    ] = "",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Then print each resource that changes.")
    ] = False,
    namespace: Namespace = manifests.NAMESPACE,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    dir: Directory = HERE,
) -> None:
    """Show the resources of a `shoal up`, as kubectl prints them."""

    def run() -> None:
        state = find_state(dir)
        if not words:
            raise KubectlRefusal(
                f"You must specify the type of resource to get. {_KINDS}\n\n"
                "error: Required resource not specified."
            )
        if output not in ("", "yaml", "json", "wide", "name"):
            raise KubectlRefusal(
                f'error: unable to match a printer suitable for the output format "{output}", '
                "allowed formats are: json,name,wide,yaml"
            )
        scope = make_scope(words, namespace, all_namespaces=all_namespaces, selector=selector)
        targets = parse_targets(words)
        files = _stat_objects(state) if watch else {}
        selected, errors = select(read_objects(state), targets, scope)
        printer = _Printer(state, targets, output, scope)
        printer.print_all(selected, has_errors=bool(errors))
        if errors:
            raise KubectlRefusal("\n".join(errors))
        shown = {_get_version(resource) for of_kind in selected.values() for resource in of_kind}
        while watch:
            time.sleep(_LOOK_SECONDS)
            if (newest := _stat_objects(state)) != files:
                files = newest
                _print_changes(printer, read_objects(state), shown)

    run_as_kubectl(run)


def _print_changes(
    printer: _Printer, objects: dict[Key, dict[str, Any]], shown: set[tuple[str, str]]
) -> None:
    """Print the wanted resources that are not in `shown`, and note them there."""
    for definition in printer.definitions:
        for (kind, _, _), resource in sorted(objects.items(), key=_get_name):
            version = _get_version(resource)
            if kind == definition.kind and printer.is_wanted(resource) and version not in shown:
                shown.add(version)
                printer.print_change(definition, resource)


def _stat_objects(state: StateFolder) -> dict[str, int]:
    """Return the times of the files of objects, which cost less to compare than to read."""
    times = {}
    for file in state.objects.glob("*/*/*.yaml"):
        try:
            times[str(file)] = file.stat().st_mtime_ns
        except FileNotFoundError:
            continue
    return times


def _get_version(resource: dict[str, Any]) -> tuple[str, str]:
    meta = resource["metadata"]
    return meta["uid"], meta["resourceVersion"]


def _get_name(entry: tuple[Key, dict[str, Any]]) -> Key:
    return entry[0]


class _Printer:
    """Prints resources in one format. Rows of changes have the widths of the first table."""

    def __init__(
        self, state: StateFolder, targets: list[ResourceTarget], output: str, scope: Scope
    ) -> None:
        self._state, self._targets = state, targets
        self.definitions = list({t.definition.kind: t.definition for t in targets}.values())
        self._output, self._scope = output, scope
        self._widths: dict[str, list[int]] = {}

    def is_wanted(self, resource: dict[str, Any]) -> bool:
        """Return whether a resource is one to print."""
        return is_wanted(resource, self._targets, self._scope)

    def print_all(self, selected: dict[str, list[dict[str, Any]]], *, has_errors: bool) -> None:
        """Print the resources by their kinds."""
        everything = [
            resource for definition in self.definitions for resource in selected[definition.kind]
        ]
        if has_errors and not everything:
            return
        if self._output in ("yaml", "json"):
            body = (
                everything[0]
                if len(self._targets) == 1 and self._targets[0].name is not None
                else {
                    "apiVersion": "v1",
                    "kind": "List",
                    "metadata": {"resourceVersion": ""},
                    "items": everything,
                }
            )
            self._print_body(body)
            return
        if not everything:
            say(f"No resources found{self._scope.place}", file=sys.stderr)
            return
        several = [definition for definition in self.definitions if selected[definition.kind]]
        for number, definition in enumerate(several):
            if self._output == "name":
                for resource in selected[definition.kind]:
                    self._print_name(definition, resource)
                continue
            rows = self._make_rows(definition, selected[definition.kind])
            self._widths[definition.kind] = printing.measure_columns(rows)
            if number:
                say("")
            for line in printing.format_table(rows):
                say(line, flush=True)

    def print_change(self, definition: Definition, resource: dict[str, Any]) -> None:
        """Print a resource that is new or has changed."""
        if self._output in ("yaml", "json"):
            self._print_body(resource)
        elif self._output == "name":
            self._print_name(definition, resource)
        else:
            head, row = self._make_rows(definition, [resource])
            widths = self._widths.get(definition.kind)
            lines = printing.format_table([head, row], widths)
            # A kind that had no resources gets its head with the first one.
            for line in lines if widths is None else lines[1:]:
                say(line, flush=True)
            self._widths.setdefault(definition.kind, printing.measure_columns([head, row]))

    def _make_rows(
        self, definition: Definition, resources: list[dict[str, Any]]
    ) -> list[list[str]]:
        translate = _make_translator(self._state)
        rows = printing.format_rows(
            definition,
            resources,
            datetime.datetime.now(datetime.UTC),
            wide=self._output == "wide",
            prefix=len(self.definitions) > 1,
            has_namespace=self._scope.namespace is None,
        )
        return [[translate(cell) for cell in row] for row in rows]

    def _print_body(self, body: dict[str, Any]) -> None:
        text = dump_yaml(body).rstrip() if self._output == "yaml" else json.dumps(body, indent=4)
        say(text, flush=True)

    def _print_name(self, definition: Definition, resource: dict[str, Any]) -> None:
        say(f"{definition.full_singular}/{resource['metadata']['name']}", flush=True)


def _make_translator(state: StateFolder) -> Any:
    """Return what replaces names of Services in a table by the addresses of this machine."""
    objects = read_objects(state)

    def list_pods(namespace: str, service: str) -> list[str]:
        resource = objects.get(("Service", namespace, service), {})
        selector = resource.get("spec", {}).get("selector", {})
        return sorted(
            name
            for (kind, pod_namespace, name), pod in objects.items()
            if kind == "Pod"
            and pod_namespace == namespace
            and selector
            and selector.items() <= pod["metadata"].get("labels", {}).items()
        )

    return Addresses(state.ports, list_pods).translate


@describe_app.command()
def describe(
    words: ResourceArguments = None,
    namespace: Namespace = manifests.NAMESPACE,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    dir: Directory = HERE,
) -> None:
    """Show resources of a `shoal up` with their events."""

    def run() -> None:
        state = find_state(dir)
        if not words:
            text = "error: You must specify the type of resource to describe."
            raise KubectlRefusal(f"{text} {_KINDS}")
        objects = read_objects(state)
        now = datetime.datetime.now(datetime.UTC)
        scope = make_scope(words, namespace, all_namespaces=all_namespaces, selector=selector)
        targets = parse_targets(words)
        selected, errors = select(objects, targets, scope)
        if errors and len(targets) == 1 and (matching := list_matching(objects, targets[0], scope)):
            selected, errors = {"": matching}, []
        texts = [
            printing.format_description(resource, _list_events(objects, resource), now)
            for of_kind in selected.values()
            for resource in of_kind
        ]
        if texts:
            say("\n\n\n".join(texts))
        if errors:
            raise KubectlRefusal("\n".join(errors))
        if not texts:
            say(f"No resources found{scope.place}", file=sys.stderr)

    run_as_kubectl(run)


def _list_events(
    objects: dict[Key, dict[str, Any]], resource: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the events about a resource, the newest last."""
    uid = resource["metadata"]["uid"]
    events = [
        event
        for (kind, _, _), event in objects.items()
        if kind == "Event" and event["involvedObject"]["uid"] == uid
    ]
    return sorted(events, key=lambda event: event["lastTimestamp"])


# logs


@logs_app.command()
def logs(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A ShareConsumer, a QueueCluster or a pod.")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines, too.")] = False,
    tail: Annotated[int, typer.Option(help="The last lines of each log; -1 for all.")] = -1,
    namespace: Namespace = manifests.NAMESPACE,
    dir: Directory = HERE,
) -> None:
    """Print the output of a consumer's or cluster's processes, with the pod before each line."""

    def run() -> None:
        state = find_state(dir)
        name_only = name.partition("/")[2] or name
        reader = LogReader(state.logs / namespace, name_only)
        if not reader.find_files():
            _explain_absence(state, namespace, name_only, waits=follow)
        reader.print_new(tail)
        while follow:
            time.sleep(_LOOK_SECONDS)
            reader.print_new()

    run_as_kubectl(run)


def _explain_absence(state: StateFolder, namespace: str, name: str, *, waits: bool) -> None:
    """Say that nothing of this name has run yet. Raises `KubectlRefusal` unless the command waits
    for it, which it cannot if there is no such resource."""
    objects = read_objects(state)
    if not any((kind, namespace, name) in objects for kind in _WITH_LOGS):
        raise KubectlRefusal(
            f'error: there is no {", ".join(_WITH_LOGS[:-1])} or {_WITH_LOGS[-1]} "{name}" in '
            f'namespace "{namespace}"'
        )
    if not waits:
        raise KubectlRefusal(
            f'error: no logs of "{name}": it has not run yet. Wait for them with --follow.'
        )
    say(f'"{name}" has not run yet: waiting for its first line.', file=sys.stderr, flush=True)


class LogReader:
    """The logs of the pods of one resource, or of one pod."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._positions: dict[Path, int] = {}

    def find_files(self) -> list[Path]:
        """Return the logs by the time of their last change."""
        files = [
            file
            for pod in self._folder.glob(f"{self._name}*")
            if self._is_of(pod.name)
            for file in pod.glob("*.log")
        ]
        return sorted(files, key=_get_time)

    def _is_of(self, pod: str) -> bool:
        rest = pod.removeprefix(self._name)
        parts = rest.split("-")[1:]
        of_cluster = len(parts) >= 2 and parts[0] in ("broker", "pool") and parts[-1].isdigit()
        # A Deployment's pod and a Job's have two parts after the name, the first of ten characters.
        of_consumer = (len(parts) == 2 and len(parts[0]) == 10) or parts == ["driver"]
        return not rest or of_cluster or of_consumer

    def print_new(self, tail: int = -1) -> None:
        """Print what is new in all logs."""
        for file in self.find_files():
            try:
                with file.open("rb") as opened:
                    opened.seek(self._positions.get(file, 0))
                    text = opened.read()
            except FileNotFoundError:
                continue
            whole = text[: text.rfind(b"\n") + 1]
            self._positions[file] = self._positions.get(file, 0) + len(whole)
            lines = whole.decode(errors="replace").splitlines()
            for line in lines[-tail:] if tail > 0 else lines if tail else []:
                say(f"{file.parent.name} {line}", flush=True)


def _get_time(file: Path) -> float:
    """Return when a log has changed, 0 if it has been removed meanwhile."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0

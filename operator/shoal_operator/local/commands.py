"""The commands `up`, `apply`, `delete` and `down` of `shoal`; `reading` has the others.

The operator's package registers them with the `shoal` command by entry points (`shoal.commands` in
pyproject.toml). So this module may import the command line's own helpers, and nothing else of the
engine imports the operator. Names, columns and exit codes are kubectl's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from shoal.cli.session import CommandError, run_guarded
from shoal.cli.terminal import say

from shoal_operator.local import changes, manifests, requests, state_folder
from shoal_operator.local.addresses import LocalLoop
from shoal_operator.local.api import LocalApi, get_key
from shoal_operator.local.live_view import list_unready, make_view
from shoal_operator.local.pod_runner import GRACE_SECONDS
from shoal_operator.local.processes import ProcessTable, is_same
from shoal_operator.local.reading import (
    HERE,
    AllNamespaces,
    Directory,
    Namespace,
    ResourceArguments,
    Selector,
    find_state,
    make_app,
)
from shoal_operator.local.state_folder import StateFolder, read_json
from shoal_operator.local.targets import (
    KubectlRefusal,
    Scope,
    make_scope,
    parse_targets,
    run_as_kubectl,
    select,
)

if TYPE_CHECKING:
    from shoal_operator.local.api import Key
    from shoal_operator.local.up import Up

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename", "-f", metavar="PATH", help="A file or a folder of manifests; repeatable."
    ),
]
FilesOrInput = Annotated[
    list[Path] | None,
    typer.Option(
        "--filename",
        "-f",
        metavar="PATH",
        help="A file or a folder of manifests, or - for standard input; repeatable.",
    ),
]
#: Seconds for a detached `shoal up` to be ready, and for `down` to end it once its consumers have.
READY_SECONDS, DOWN_SECONDS = 60.0, 90.0
_LOOK_SECONDS = 0.1
#: Seconds between looks at the files of `shoal up --watch`, and the time for which a file has to be
#: the same until it counts as written: an editor may empty it first.
FOLLOW_SECONDS, WRITTEN_SECONDS = 0.5, 0.1


up_app, apply_app, delete_app, down_app = make_app(), make_app(), make_app(), make_app()


def _load(paths: list[Path]) -> tuple[manifests.Folder, list[str]]:
    """Return what files have, and the errors of those that cannot be read. Raises `KubectlRefusal`
    for a path without files."""
    try:
        folder = manifests.load_folder(paths)
    except manifests.BadManifest as error:
        raise KubectlRefusal(f"error: {error}") from None
    return folder, [f"error: {text}" for text in folder.errors.values()]


# up


@up_app.command()
def up(
    filename: Files = None,
    brokers: Annotated[
        int | None,
        typer.Option(min=1, max=9, help="Brokers of each QueueCluster, whatever its spec says."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Apply changes of the files while it runs.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all resources are ready.")
    ] = False,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="No TLS and no logins, whatever the specs say.")
    ] = False,
    containers: Annotated[
        bool,
        typer.Option("--containers", help="Run consumers that have an image with Docker."),
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where objects and data are. Default: .shoal in the folder of the manifests.",
        ),
    ] = None,
) -> None:
    """Run a folder of manifests on this machine, without Kubernetes, until Ctrl-C.

    Brokers and consumers are processes. The operator decides about them as it does in Kubernetes.
    Objects and data stay in the folder's .shoal, where `shoal get` and others find them.
    """

    def run() -> None:
        paths = filename or [Path()]
        if manifests.STDIN in paths:
            raise KubectlRefusal("error: `shoal up` takes files and folders, not standard input")
        folder = (paths[0] if paths[0].is_dir() else paths[0].parent).resolve()
        loaded, errors = _load(paths)
        if errors and not loaded.manifests:
            raise KubectlRefusal("\n".join(errors))
        own = StateFolder((state or folder / state_folder.NAME).resolve())
        own.create()
        if containers and (lacking := _find_docker_problem()):
            raise CommandError(lacking)
        if detach:
            words = [f"--brokers={brokers}"] if brokers else []
            flags = {"--watch": watch, "--plaintext": plaintext, "--containers": containers}
            _detach(own, paths, [*words, *(flag for flag, is_set in flags.items() if is_set)])
            return
        overrides = manifests.Overrides(brokers, plaintext, containers)
        lock = own.acquire()
        if lock is None:
            raise CommandError(f"another `shoal up` runs in {folder}. End it with `shoal down`.")
        for owner in ProcessTable(own.processes).end_leftovers():
            say(f"ended {owner} of an earlier run")
        with asyncio.Runner(loop_factory=LocalLoop) as runner:
            following = paths if watch else []
            code = runner.run(_serve(own, folder, loaded, overrides, following))
        os.close(lock)
        if code:
            raise typer.Exit(code)

    run_as_kubectl(run)


async def _serve(
    state: StateFolder,
    folder: Path,
    loaded: manifests.Folder,
    overrides: manifests.Overrides,
    following: list[Path],
) -> int:
    """Run until a signal; return the exit code: 1 if no manifest could be applied. Changes of the
    files in `following` are applied."""
    # The operator's modules take most of the time of a start, so they load here alone.
    from shoal_operator import logs
    from shoal_operator.local.up import Up

    with (state.root / "operator.log").open("w", buffering=1) as log_file:
        logs.configure(own=log_file)
        view = make_view()
        running = Up(state, folder, view.on_change, overrides)
        running.machine.clear()
        view.addresses = running.machine.addresses
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await running.start()
        try:
            outcome = running.apply_folder(loaded)
            _say_outcome(outcome)
            for foreign in loaded.foreign:
                say(f"{foreign} skipped\n  not on one machine: its kind is for Kubernetes")
            if outcome.is_refused:
                return 1
            view.start(running.api.objects)
            watching = asyncio.create_task(_follow_files(following, loaded, running))
            await ended.wait()
            watching.cancel()
            view.close()
            say("stopping: consumers first, brokers last")
        finally:
            view.close()
            await running.stop()
    return 0


async def _follow_files(paths: list[Path], loaded: manifests.Folder, running: Up) -> None:
    """Apply the manifests whenever their files have changed, until cancelled. `loaded` is what they
    had before."""
    applied_stats = seen_stats = _stat_files(paths)
    while paths:
        has_changed = seen_stats != applied_stats
        await asyncio.sleep(WRITTEN_SECONDS if has_changed else FOLLOW_SECONDS)
        stats = _stat_files(paths)
        is_written, seen_stats = stats == seen_stats, stats
        if stats == applied_stats or not is_written:
            continue
        try:
            loaded = manifests.load_folder(paths, loaded)
            outcome = running.apply_folder(loaded)
        except manifests.BadManifest as error:
            applied_stats = stats
            say(f"error: {error}", file=sys.stderr, flush=True)
            continue
        except OSError:
            continue  # The disk is full, of which an event tells. The next look tries again.
        applied_stats = stats
        changed = [line for line in outcome.lines if not line.endswith(" unchanged")]
        _say_outcome(changes.CommandOutput(changed, outcome.errors))


def _stat_files(paths: list[Path]) -> dict[Path, tuple[int, int]]:
    """Return the times and sizes of the files of manifests."""
    stats = {}
    with contextlib.suppress(manifests.BadManifest):
        for file in manifests.list_files(paths):
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                stats[file] = (status.st_mtime_ns, status.st_size)
    return stats


def _say_outcome(outcome: changes.CommandOutput) -> None:
    for line in outcome.lines:
        say(line)
    for line in outcome.errors:
        say(line, file=sys.stderr)


def _find_docker_problem() -> str:
    """Return why Docker cannot run images here, empty if it can."""
    remedy = "Without --containers, the commands of consumers run on this machine."
    try:
        words = ["docker", "version", "--format={{.Server.Version}}"]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        return f"--containers needs Docker, and there is no program docker in PATH. {remedy}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"--containers needs Docker, which does not answer: {error}. {remedy}"
    if asked.returncode:
        message = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"--containers needs Docker, whose engine does not answer: {message}. {remedy}"
    return ""


def _detach(state: StateFolder, paths: list[Path], options: list[str]) -> None:
    """Start `shoal up` in the background, and wait until its resources are ready. What it has
    refused is an error then, and the rest runs on."""
    if requests.is_running(state):
        raise CommandError(f"another `shoal up` runs in {state.root.parent}.")
    words = [sys.executable, "-m", "shoal.cli", "up"]
    words += [f"--filename={path.resolve()}" for path in paths]
    words += [f"--state={state.root}", *options]
    log = state.root / "up.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    end, waiting = time.monotonic() + READY_SECONDS, ["shoal up: starting"]
    while time.monotonic() < end:
        if process.poll() is not None:
            raise CommandError(f"`shoal up` ended: {log.read_text().strip()}")
        errors = _read_errors(state)
        if errors is not None and not (waiting := list_unready(requests.read_objects(state))):
            say(log.read_text().rstrip())
            if errors:
                _say_outcome(changes.CommandOutput([], errors))
                raise CommandError("all else is ready, and runs on. End it with `shoal down`.")
            say("Everything is ready. End it with `shoal down`.")
            return
        time.sleep(_LOOK_SECONDS)
    _say_outcome(changes.CommandOutput([], _read_errors(state) or []))
    raise CommandError(
        f"not ready after {READY_SECONDS:.0f} s: {'; '.join(waiting)}. It runs on: see "
        f"`shoal get all`, and end it with `shoal down`."
    )


def _read_errors(state: StateFolder) -> list[str] | None:
    """Return what the `shoal up` that runs has refused; None before it has applied all."""
    own = read_json(state.up) or {}
    if not own.get("applied") or not is_same(own["pid"], own["start"]):
        return None
    errors: list[str] = own["errors"]
    return errors


# apply, delete


@apply_app.command("apply")
def apply(filename: FilesOrInput = None, dir: Directory = HERE) -> None:
    """Create or change resources of a `shoal up`."""

    def run() -> None:
        if not filename:
            raise KubectlRefusal("error: must specify --filename (-f)")
        state = find_state(dir)
        loaded, errors = _load(filename)
        if not loaded.manifests:
            raise KubectlRefusal("\n".join(errors) or "error: no objects passed to apply")
        desired = {"manifests": loaded.manifests, "sources": loaded.sources}
        answer = _request(state, {"verb": "apply", **desired})
        _finish([{"lines": [], "errors": errors}, answer])

    run_as_kubectl(run)


@delete_app.command("delete")
def delete(
    words: ResourceArguments = None,
    filename: FilesOrInput = None,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="What does not exist is no error.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="All resources of the kinds that are named.")
    ] = False,
    namespace: Namespace = manifests.NAMESPACE,
    all_namespaces: AllNamespaces = False,
    selector: Selector = "",
    dir: Directory = HERE,
) -> None:
    """Delete resources of a `shoal up`."""

    def run() -> None:
        state = find_state(dir)
        if filename or not words:
            requested = _list_deletions(words or [], filename or [])
        else:
            scope = make_scope(
                words, namespace, all_namespaces=all_namespaces, selector=selector, is_all=every
            )
            requested = _find_deletions(state, words, scope)
        more = {"verb": "delete", "ignores_missing": ignore_not_found}
        _finish([_request(state, {"of": key, **more}) for key in requested])

    run_as_kubectl(run)


def _list_deletions(words: list[str], files: list[Path]) -> list[Key]:
    """Return the keys of what files name. Raises `KubectlRefusal`."""
    if not files:
        raise KubectlRefusal(
            "error: You must provide one or more resources by argument or filename."
        )
    if words:
        raise KubectlRefusal(
            "error: when paths, URLs, or stdin is provided as input, you may not specify a resource"
            " by arguments as well"
        )
    folder, errors = _load(files)
    if errors:
        raise KubectlRefusal("\n".join(errors))
    return [get_key(manifest) for manifest in folder.manifests]


def _find_deletions(state: StateFolder, words: list[str], scope: Scope) -> list[Key]:
    """Return the keys of what words name in a scope. Raises `KubectlRefusal`."""
    targets = parse_targets(words)
    if scope.is_chosen:
        selected, _ = select(requests.read_objects(state), targets, scope)
        keys = [get_key(resource) for of_kind in selected.values() for resource in of_kind]
        if not keys:
            say("No resources found", file=sys.stderr)
        return keys
    keys = []
    for target in targets:
        if target.name is None:
            raise KubectlRefusal("error: resource(s) were provided, but no name was specified")
        keys.append((target.definition.kind, scope.namespace or "", target.name))
    return keys


def _finish(answers: list[dict[str, list[str]]]) -> None:
    """Print what has been done, and end with 1 if something was refused."""
    for answer in answers:
        _say_outcome(changes.CommandOutput(answer["lines"], answer["errors"]))
    if any(answer["errors"] for answer in answers):
        raise typer.Exit(1)


def _request(state: StateFolder, request: dict[str, Any]) -> dict[str, list[str]]:
    """Let a running `shoal up` change the resources; without one, change them in the folder."""
    if requests.is_running(state):
        answer: dict[str, list[str]] = requests.ask(state, request)
        return answer
    lock = state.acquire()
    if lock is None:
        raise CommandError("`shoal up` is starting or stopping. Try again in a moment.")
    with contextlib.closing(os.fdopen(lock)):
        api = LocalApi(state.objects)
        if request["verb"] == "apply":
            desired, sources = request["manifests"], request["sources"]
            return changes.apply_manifests(api, desired, sources=sources)._asdict()
        ignores_missing = request["ignores_missing"]
        deleted = changes.delete(api, *request["of"], ignores_missing=ignores_missing)
        return asyncio.run(deleted)._asdict()


@down_app.command()
def down(
    dir: Directory = HERE,
    purge: Annotated[
        bool, typer.Option("--purge", help="Remove all objects and data, too. Asks.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End a `shoal up`; its data stays."""

    def run() -> None:
        state = find_state(dir)
        own = read_json(state.up)
        if own and is_same(own["pid"], own["start"]):
            os.kill(own["pid"], signal.SIGTERM)
            end = time.monotonic() + compute_stop_seconds(LocalApi(state.objects))
            while is_same(own["pid"], own["start"]):
                if time.monotonic() > end:
                    raise CommandError(f"`shoal up` (pid {own['pid']}) does not stop.")
                time.sleep(_LOOK_SECONDS)
            say("stopped")
        lock = state.acquire()
        if lock is None:
            raise CommandError("`shoal up` is starting. Try again in a moment.")
        with contextlib.closing(os.fdopen(lock)):
            for owner in ProcessTable(state.processes).end_leftovers():
                say(f"ended {owner}")
            if purge:
                _purge(state, yes=yes)
            else:
                say(f"The data stays in {state.root}. `shoal down --purge` removes it.")

    run_guarded(run)


def compute_stop_seconds(api: LocalApi) -> float:
    """Return how long a `shoal up` may take to stop: its consumers get the time that they ask for,
    and then its brokers."""
    graces = [
        pod["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS)
        for pod in api.iterate("Pod")
    ]
    return DOWN_SECONDS + max(graces, default=0)


def _purge(state: StateFolder, *, yes: bool) -> None:
    import shutil

    if not yes:
        typer.confirm(f"Remove {state.root} with all topics and their records?", abort=True)
    shutil.rmtree(state.root)
    say(f"removed {state.root}")

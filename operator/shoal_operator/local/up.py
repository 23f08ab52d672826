"""One run of `shoal up`: the operator, the machine, and the socket for `apply` and `delete`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from typing import TYPE_CHECKING, Any

import structlog

from shoal_operator.brokers.first_requests import prepare_first_requests
from shoal_operator.local import changes, manifests
from shoal_operator.local.addresses import LocalLoop
from shoal_operator.local.api import LocalApi, get_key, is_of_operator
from shoal_operator.local.containers import BROKER_IMAGE
from shoal_operator.local.machine import Machine
from shoal_operator.local.manifests import Overrides
from shoal_operator.local.pods import is_broker, is_running
from shoal_operator.local.processes import get_start
from shoal_operator.local.state_folder import StateFolder, read_json, update_file, write_text
from shoal_operator.local.user_folders import UserFolders
from shoal_operator.model import cluster as cluster_model
from shoal_operator.model import names, queue_cluster, security
from shoal_operator.runtime import CUSTOM, Operator
from shoal_operator.settings import ChartSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from shoal_operator.model.names import Manifest

log = structlog.get_logger()
#: The workloads of ShareConsumers that run here.
WORKLOADS = frozenset({"deployment", "job", "spark"})
_REQUEST_BYTES_MAX = 64 << 20


class Up:
    """The operator on one machine. Construct it in a running `LocalLoop`.

    `folder` has the manifests, where the relative paths of consumers begin. `on_change` is called
    with each object that was written or deleted (True).
    """

    def __init__(
        self,
        state: StateFolder,
        folder: Path,
        on_change: Callable[[Manifest, bool], None],
        overrides: Overrides = Overrides(),
    ) -> None:
        self._state, self._overrides = state, overrides
        self.api = LocalApi(state.objects)
        self.machine = Machine(self.api, state, folder, runs_images=overrides.containers)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LocalLoop), "connections go through the loop"
        loop.addresses = self.machine.addresses
        self._user_folders = UserFolders(self.api, state.users, self.machine.addresses)
        self.api.subscribe(self._on_change)
        self.api.subscribe(on_change)
        self._operator: Operator | None = None
        self._server: asyncio.Server | None = None
        #: Begins once a broker starts, which leaves the time for it.
        self._preparing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Let the operator act, and listen on the socket."""
        self._user_folders.sync_all()
        namespaces = {key[1] for key in self.api.objects if key[0] in CUSTOM}
        self._operator = Operator(
            self.api, make_settings(), tuple(sorted(namespaces | {manifests.NAMESPACE}))
        )
        self._operator.set_leading(True)
        with contextlib.suppress(FileNotFoundError):
            self._state.socket.unlink()
        self._server = await asyncio.start_unix_server(
            self._answer, sock=_bind(self._state), limit=_REQUEST_BYTES_MAX
        )
        self._write_up(applied=False)

    def _write_up(self, *, applied: bool, errors: Sequence[str] = ()) -> None:
        pid = os.getpid()
        own = {"pid": pid, "start": get_start(pid), "applied": applied, "errors": list(errors)}
        write_text(self._state.up, json.dumps(own))

    async def stop(self) -> None:
        """Stop the operator, then consumers, and brokers last."""
        if self._server is not None:
            self._server.close()
        if self._operator is not None:
            await self._operator.close()
        await self.machine.stop()
        for file in (self._state.up, self._state.socket, self._state.client_properties):
            file.unlink(missing_ok=True)

    def _on_change(self, manifest: Manifest, deleted: bool) -> None:
        if self._operator is not None and is_of_operator(manifest):
            if deleted:
                self._operator.on_delete(manifest)
            else:
                self._operator.on_update(manifest)
        if manifest["kind"] in ("QueueCluster", "Secret"):
            self._write_client_properties()
        if self._preparing is None and is_broker(manifest) and is_running(manifest):
            self._preparing = asyncio.create_task(prepare_first_requests())
        self._user_folders.on_change(manifest)

    # -- resources

    def apply_folder(self, folder: manifests.Folder) -> changes.CommandOutput:
        """Apply what the files have, and delete what they had at the last time. What is refused is
        an event, too: resources stay as the last good manifest says."""
        desired = folder.manifests
        sources = folder.sources
        outcome = changes.apply_manifests(self.api, desired, self._overrides, sources=sources)
        for manifest, error in zip(outcome.refused, outcome.errors, strict=True):
            self._warn([manifest], "ManifestRefused", error)
        for unreadable, error in folder.errors.items():
            self._warn(folder.files[unreadable], "ManifestUnreadable", error)
            outcome.errors.append(f"error: {error}")
        file = self._state.root / "applied.json"
        keys = [[m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]] for m in desired]
        if all(folder.files[unreadable] for unreadable in folder.errors):
            for gone in changes.delete_missing(self.api, read_json(file), desired):
                name = gone["metadata"]["name"]
                self.api.delete_now(gone)
                outcome.lines.append(f'{gone["kind"].lower()}.{names.GROUP} "{name}" deleted')
        else:  # Nobody knows which resources that file had, so those of an earlier run stay.
            keys += [key for key in read_json(file) or [] if key not in keys]
        write_text(file, json.dumps(keys))
        self._write_up(applied=not outcome.is_refused, errors=outcome.errors)
        return outcome

    def _warn(self, involved: Sequence[Manifest], reason: str, text: str) -> None:
        """Record a warning about those of the manifests that are stored; without any, about the
        QueueClusters."""
        stored = [
            resource
            for manifest in involved
            if (resource := self.api.objects.get(get_key(manifest)))
        ]
        for manifest in stored or list(self.api.iterate("QueueCluster")):
            self.api.warn(manifest, reason, text)

    def _write_client_properties(self) -> None:
        """Write with what other `shoal` commands in this folder reach the first QueueCluster: as
        the operator does, which may do everything."""
        for cluster in map(queue_cluster.read, self.api.iterate("QueueCluster")):
            meta = cluster["metadata"]
            stateful = self.api.find(
                "StatefulSet", meta["namespace"], names.format_stateful_set(meta["name"])
            )
            if stateful is None:
                continue
            stage = security.get_stage(cluster, stateful)
            servers = cluster_model.get_bootstrap_servers(security.resolve(cluster, stage))
            properties = {"bootstrap.servers": self.machine.addresses.translate(servers)}
            if properties["bootstrap.servers"] == servers:
                continue  # It has no pods yet.
            if stage.is_used:
                secret = security.format_operator_secret(meta["name"])
                own = self.api.find("Secret", meta["namespace"], secret)
                properties |= self._write_credentials(own) if own else {}
            text = "".join(f"{name}={value}\n" for name, value in properties.items())
            update_file(self._state.client_properties, text.encode())
            return

    def _write_credentials(self, secret: Manifest) -> dict[str, str]:
        client = security.parse_operator_client(secret)
        folder = self._state.root / "client"
        files = {
            "ca.crt": client["ssl.ca.pem"],
            "client.pem": client["ssl.certificate.pem"] + client["ssl.key.pem"],
        }
        for name, text in files.items():
            update_file(folder / name, text.encode())
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.crt"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "client.pem"),
        }

    # -- the socket

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request: a line of JSON, and a line of JSON back."""
        try:
            request = json.loads(await reader.readline())
            answer = await self._serve(request)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (ValueError, OSError) as error:
            log.warning("a request on the socket failed", error=str(error))
        finally:
            writer.close()

    async def _serve(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if request["verb"] == "list":
            return {"objects": list(self.api.objects.values())}
        if request["verb"] == "apply":
            desired, sources = request["manifests"], request["sources"]
            return changes.apply_manifests(
                self.api, desired, self._overrides, sources=sources
            )._asdict()
        ignores_missing = request["ignores_missing"]
        deleted = await changes.delete(self.api, *request["of"], ignores_missing=ignores_missing)
        return deleted._asdict()


def make_settings() -> ChartSettings:
    """Return the settings of an operator without Kubernetes."""
    return ChartSettings(
        broker_image=BROKER_IMAGE,
        spark_image="",
        driver_role_kind="",
        scale_url="",
        workloads=WORKLOADS,
        workload_remedy="A scale target is an object of Kubernetes. `shoal up` runs "
        "spec.deployment, spec.job and spec.spark.",
        racks=False,
        routed=frozenset(),
    )


def _bind(state: StateFolder) -> socket.socket:
    """Return the socket. Its path may be longer than the system allows, so it is bound from within
    its folder."""
    bound, before = socket.socket(socket.AF_UNIX), os.open(".", os.O_RDONLY)
    try:
        os.chdir(state.root)
        bound.bind(state.socket.name)
    finally:
        os.fchdir(before)
        os.close(before)
    return bound

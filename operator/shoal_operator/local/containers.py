"""What a container of a pod is as a process: its words, its environment, and its files.

A mount is a folder in the state folder. The paths of mounts are replaced by those folders in the
words, in the environment, and in the files of ConfigMaps and Secrets; so are addresses of pods and
Services (`addresses`). Nothing here starts a process.
"""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal_operator import __version__
from shoal_operator.local.addresses import HOST
from shoal_operator.local.state_folder import update_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_operator.local.addresses import Addresses
    from shoal_operator.local.api import LocalApi
    from shoal_operator.local.state_folder import StateFolder
    from shoal_operator.model.names import Manifest

#: The image of brokers, and of consumers without one, and the program that it runs.
BROKER_IMAGE = f"localhost/shoal/broker:{__version__}"
SHOAL = (sys.executable, "-m", "shoal.cli")
BROKER = {"app.kubernetes.io/component": "broker"}
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_LABEL = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
#: Mounts whose path is the same on this machine.
_SAME = ("/tmp",)


class NotRunnable(Exception):
    """A container that cannot be a process here: the kubelet's reason, and a message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Launch(NamedTuple):
    """A process to start."""

    words: list[str]
    env: dict[str, str]
    folder: Path
    #: What removes what a killed process leaves, empty if nothing does.
    cleanup: tuple[str, ...] = ()


class ContainerFiles:
    """The files of one pod, and what its containers run. `folder` is where relative paths begin:
    the folder of the manifests."""

    def __init__(
        self,
        api: LocalApi,
        state: StateFolder,
        addresses: Addresses,
        folder: Path,
        pod: Manifest,
        *,
        runs_images: bool = False,
    ) -> None:
        self._api, self._state, self._addresses = api, state, addresses
        self._folder, self._pod, self._runs_images = folder, pod, runs_images
        self._namespace, self._name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.is_broker = BROKER.items() <= pod["metadata"].get("labels", {}).items()

    # -- volumes

    def write_volumes(self) -> None:
        """Write the files of all ConfigMaps and Secrets that the pod mounts. Raises `NotRunnable`
        if one is missing.

        Each container has its own copies: the same path may be another folder in another one.
        """
        for container in self._pod["spec"]["containers"]:
            mounts = self._map_mounts(container)
            for volume in self._pod["spec"].get("volumes", []):
                folder = self._get_folder(volume, container)
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                for name, content in self._read_source(volume).items():
                    update_file(folder / name, self._localize(content, mounts))

    def _get_folder(self, volume: Mapping[str, Any], container: Mapping[str, Any]) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self._state.volumes / self._namespace / claim["claimName"]
        folder = self._state.pods / self._namespace / self._name
        if "emptyDir" in volume:
            return folder / "shared" / volume["name"]
        return folder / "of" / container["name"] / volume["name"]

    def _read_source(self, volume: Mapping[str, Any]) -> dict[str, bytes]:
        """Return the files of a ConfigMap or a Secret; none for a volume of another type."""
        for field, kind, key in (
            ("secret", "Secret", "secretName"),
            ("configMap", "ConfigMap", "name"),
        ):
            if field in volume:
                source = volume[field]
                data = self._read_data(kind, source[key], optional=source.get("optional", False))
                items = source.get("items")
                files = {i["path"]: data[i["key"]] for i in items} if items else data
                if any(".." in path.split("/") for path in files):
                    text = f'volume "{volume["name"]}": a path must not contain ".."'
                    raise NotRunnable("CreateContainerConfigError", text)
                return files
        supported = ("emptyDir", "persistentVolumeClaim")
        if not any(field in volume for field in supported):
            kind = next((field for field in volume if field != "name"), "")
            text = f'volume "{volume["name"]}" of type {kind} is not on one machine'
            raise NotRunnable("CreateContainerConfigError", text)
        return {}

    def _read_data(self, kind: str, name: str, *, optional: bool) -> dict[str, bytes]:
        resource = self._api.find(kind, self._namespace, name)
        if resource is None:
            if optional:
                return {}
            raise NotRunnable("CreateContainerConfigError", f'{kind.lower()} "{name}" not found')
        data = {k: v.encode() for k, v in resource.get("stringData", {}).items()}
        for key, value in resource.get("data", {}).items():
            data[key] = base64.b64decode(value) if kind == "Secret" else str(value).encode()
        return data

    def _map_mounts(self, container: Mapping[str, Any]) -> dict[str, str]:
        volumes = {v["name"]: v for v in self._pod["spec"].get("volumes", [])}
        mounts = {}
        for mount in container.get("volumeMounts", []):
            path = mount["mountPath"].rstrip("/")
            if path in _SAME or mount["name"] not in volumes:
                continue
            local = self._get_folder(volumes[mount["name"]], container) / mount.get("subPath", "")
            mounts[path] = str(local)
        return mounts

    def _localize(self, content: bytes, mounts: Mapping[str, str]) -> bytes:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        if text.startswith("-----BEGIN "):
            return content
        if self.is_broker:
            text = self._localize_config(text)
        return replace_paths(self._addresses.translate(text), mounts).encode()

    def _localize_config(self, text: str) -> str:
        """Let a broker listen on this machine alone, at the ports of its pod."""
        text = text.replace("${env:POD_NAME}", self._name).replace("${env:NODE_IP}", HOST)

        def use_port(match: re.Match[str]) -> str:
            return f"{HOST}:{self._get_port(int(match[1]))}"

        return re.sub(r"(?:(?<=://)|\b0\.0\.0\.0):(\d+)\b", use_port, text)

    def _get_port(self, port: int) -> int:
        return self._addresses.get_port(self._namespace, self._name, port)

    def resolve_port(self, container: Mapping[str, Any], port: int | str) -> int:
        """Return the port of this machine for a port of a container, by its number or name. That of
        a consumer is the same, because nobody tells its program another one."""
        ports = {p.get("name"): p["containerPort"] for p in container.get("ports", [])}
        number = int(ports.get(port, port))
        return self._get_port(number) if self.is_broker else number

    # -- processes

    def build_launch(self, container: Mapping[str, Any]) -> Launch:
        """Return the process of a container. Raises `NotRunnable`."""
        mounts = self._map_mounts(container)
        own = self._build_environment(container)
        words = [*container.get("command", []), *container.get("args", [])]
        in_docker = self._is_image_run(container)
        if not container.get("command") and not in_docker:
            if not self.is_broker and container.get("image") != BROKER_IMAGE:
                raise NotRunnable(
                    "CreateContainerError",
                    f'image "{container["image"]}" is not on one machine, and the container has no '
                    "command. Set command to the program of this machine that does the same, or "
                    "use --containers",
                )
            words = [*SHOAL, *words]
        env = {k: replace_paths(self._addresses.translate(v), mounts) for k, v in own.items()}
        words = [expand(word, env) for word in words]
        words = [replace_paths(self._addresses.translate(word), mounts) for word in words]
        if in_docker:
            return self._build_docker(container, words, env, mounts)
        folder = Path(replace_paths(container.get("workingDir", ""), mounts) or self._folder)
        return Launch(words, _build_base(self._name) | env, self._folder / folder)

    def build_exec(self, container: Mapping[str, Any], command: list[str]) -> Launch:
        """Return a command in a container that runs: of a probe or a hook. Raises `NotRunnable`."""
        launch = self.build_launch({**container, "command": command, "args": []})
        if not self._is_image_run(container):
            return launch
        mounts = self._map_mounts(container)
        words = [replace_paths(self._addresses.translate(word), mounts) for word in command]
        docker = ["docker", "exec", self._name_container(container), *words]
        return launch._replace(words=docker, cleanup=())

    def _name_container(self, container: Mapping[str, Any]) -> str:
        """Return the name of a container of Docker, which all folders share."""
        return f"shoal-{self._namespace}-{self._name}-{container['name']}"

    def _is_image_run(self, container: Mapping[str, Any]) -> bool:
        """Return whether a container runs as its image says. That of a Spark driver is this
        machine's own Spark."""
        image, labels = container.get("image", ""), self._pod["metadata"].get("labels", {})
        own = self.is_broker or "spark-role" in labels or image in ("", BROKER_IMAGE)
        return self._runs_images and not own

    def _build_docker(
        self,
        container: Mapping[str, Any],
        words: list[str],
        env: Mapping[str, str],
        mounts: Mapping[str, str],
    ) -> Launch:
        """Return the process of a container of Docker. It has the network of this machine, and
        each mount at its own path and at that of this machine, which other files name."""
        name = self._name_container(container)
        options = ["--rm", f"--name={name}", "--network=host", f"--hostname={self._name}"]
        # Programs look their own name up, such as those of Java.
        options.append(f"--add-host={self._name}:{HOST}")
        options.append(f"--user={os.getuid()}:{os.getgid()}")
        # Values stay out of the list of processes.
        options += [f"--env={variable}" for variable in env]
        for path, local in mounts.items():
            # Docker would make a missing folder as root. `--volume` ends a path at a colon.
            if not os.path.exists(local):
                os.makedirs(local, 0o700)
            options += [format_mount(local, path), format_mount(local, local)]
        if folder := container.get("workingDir"):
            options.append(f"--workdir={folder}")
        if container.get("command"):
            options.append(f"--entrypoint={words.pop(0)}")
        docker = ["docker", "run", *options, container["image"], *words]
        cleanup = ("docker", "rm", "--force", name)
        return Launch(docker, _build_base(self._name) | dict(env), self._folder, cleanup)

    def _build_environment(self, container: Mapping[str, Any]) -> dict[str, str]:
        env: dict[str, str] = {}
        for source in container.get("envFrom", []):
            for field, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
                if field in source:
                    reference = source[field]
                    data = self._read_data(
                        kind, reference["name"], optional=reference.get("optional", False)
                    )
                    prefix = source.get("prefix", "")
                    env |= {f"{prefix}{k}": v.decode() for k, v in data.items()}
        for entry in container.get("env", []):
            value = entry.get("value", "")
            if source := entry.get("valueFrom"):
                resolved = self._resolve(source)
                if resolved is None:
                    continue
                value = resolved
            env[entry["name"]] = expand(str(value), env)
        return env

    def _resolve(self, source: Mapping[str, Any]) -> str | None:
        """Return the value of an EnvVar's source, None for one that is optional and absent."""
        if field := source.get("fieldRef"):
            return self._get_field(field["fieldPath"])
        for name, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
            if name in source:
                reference = source[name]
                optional = reference.get("optional", False)
                data = self._read_data(kind, reference["name"], optional=optional)
                if reference["key"] in data:
                    return data[reference["key"]].decode()
                if optional:
                    return None
                source_name = f"{self._namespace}/{reference['name']}"
                text = f"couldn't find key {reference['key']} in {kind} {source_name}"
                raise NotRunnable("CreateContainerConfigError", text)
        return ""

    def _get_field(self, path: str) -> str:
        meta = self._pod["metadata"]
        if match := _LABEL.fullmatch(path):
            return str(meta.get(match[1], {}).get(match[2], ""))
        fields = {
            "metadata.name": self._name,
            "metadata.namespace": self._namespace,
            "metadata.uid": meta.get("uid", ""),
            "status.hostIP": HOST,
            "status.podIP": HOST,
            "spec.nodeName": "localhost",
        }
        return str(fields.get(path, ""))


def format_mount(source: str, target: str) -> str:
    """Return Docker's option for a folder, in whose values commas and quotes have to be quoted."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(
        ["type=bind", f"source={source}", f"target={target}"]
    )
    return f"--mount={row.getvalue()}"


def expand(text: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: unknown references stay."""
    return _REFERENCE.sub(lambda match: env.get(match[1], match[0]), text)


def replace_paths(text: str, mounts: Mapping[str, str]) -> str:
    """Return a text in which the paths of mounts are those of this machine."""
    for path in sorted(mounts, key=len, reverse=True):
        before, *parts = text.split(path)
        for part in parts:
            begins = before.endswith("://") or not _is_of_name(before[-1:], "_./-")
            is_whole = begins and not _is_of_name(part[:1], "_-")
            before += (mounts[path] if is_whole else path) + part
        text = before
    return text


def _is_of_name(character: str, others: str) -> bool:
    """Whether a character, "" at an end of the text, continues the name of a file."""
    return bool(character) and (character.isalnum() or character in others)


def _build_base(pod: str) -> dict[str, str]:
    """Return the variables of this machine, without those that would configure a broker or a
    client, and with the folder of this Python's programs first: `shoal` is there."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SHOAL_")}
    programs: Sequence[str] = (str(Path(sys.executable).parent), env.get("PATH", os.defpath))
    return env | {"PATH": os.pathsep.join(programs), "HOSTNAME": pod, "PYTHONUNBUFFERED": "1"}

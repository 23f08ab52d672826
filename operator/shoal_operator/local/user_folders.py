"""What your own programs log in with: for each QueueUser the files of its Secret, in a folder.

In Kubernetes a program mounts the Secret at a path that its properties name. Here the properties
name the folder, and the addresses of this machine.
"""

from __future__ import annotations

import base64
import shutil
from typing import TYPE_CHECKING

import structlog

from shoal_operator.local.containers import replace_paths
from shoal_operator.local.manifests import NAMESPACE
from shoal_operator.local.state_folder import update_file
from shoal_operator.model import names, users

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_operator.local.addresses import Addresses
    from shoal_operator.local.api import LocalApi
    from shoal_operator.model.names import Manifest

log = structlog.get_logger()


class UserFolders:
    """Keeps the folders in `root` as the Secrets in `api` are: `NAME`, or `NAME@NAMESPACE` outside
    of the namespace default. No name has an `@`, so that they do not meet."""

    def __init__(self, api: LocalApi, root: Path, addresses: Addresses) -> None:
        self._api, self._root, self._addresses = api, root, addresses

    def on_change(self, manifest: Manifest) -> None:
        """Write what an object that has changed or was deleted is about. The status of a
        QueueCluster tells of new pods, and of a disk that has space again."""
        meta = manifest["metadata"]
        owner = meta.get("labels", {}).get(names.USER_LABEL)
        try:
            if manifest["kind"] == "QueueCluster":
                self.sync_all()
            elif manifest["kind"] == "QueueUser" or (manifest["kind"] == "Secret" and owner):
                self._sync(meta["namespace"], meta["name"])
        except OSError as error:
            log.error("cannot write the folders of users", error=str(error))

    def sync_all(self) -> None:
        """Write the folders of all users, and remove those of users who no longer exist."""
        kept = set()
        for user in list(self._api.iterate("QueueUser")):
            meta = user["metadata"]
            self._sync(meta["namespace"], meta["name"])
            kept.add(self._get_folder(meta["namespace"], meta["name"]))
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            if folder not in kept:
                shutil.rmtree(folder)

    def _get_folder(self, namespace: str, name: str) -> Path:
        return self._root / (name if namespace == NAMESPACE else f"{name}@{namespace}")

    def _sync(self, namespace: str, name: str) -> None:
        """Write the folder of a user, or remove that of a user who has no Secret."""
        folder = self._get_folder(namespace, name)
        user = self._api.find("QueueUser", namespace, name)
        secret = self._api.find("Secret", namespace, name)
        labels = secret["metadata"].get("labels", {}) if secret else {}
        if user is None or secret is None or labels.get(names.USER_LABEL) != name:
            if folder.is_dir():
                shutil.rmtree(folder)
            return
        files = {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}
        for key in files:
            if key.endswith(".properties"):
                text = self._addresses.translate(files[key].decode(errors="surrogateescape"))
                if self._addresses.has_names(text):
                    return  # The cluster has no pods yet, or none while it restarts.
                text = replace_paths(text, {users.MOUNT: str(folder)})
                files[key] = text.encode(errors="surrogateescape")
        for key, content in files.items():
            update_file(folder / key, content)
        for file in folder.iterdir():
            if file.name not in files:
                file.unlink()

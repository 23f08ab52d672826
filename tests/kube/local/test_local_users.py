"""The folders of QueueUsers in `.shoal/users`, without a process: what `shoal up` writes for your
own programs."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from shoal_operator.local.addresses import Addresses
from shoal_operator.local.api import LocalApi
from shoal_operator.local.user_folders import UserFolders
from shoal_operator.model import names, users
from shoal_operator.model.certificates import KeyPair
from support.brokers.local_up import make_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from shoal_operator.model.users import Credentials

STORE = b"\x00\xff\r\n"
TLS = users.Credentials(KeyPair(b"certificate", b"key"), STORE, "word")
SCRAM = users.Credentials(password="word")


class Folders:
    """The folders of an API whose only Service has the `pods`."""

    def __init__(self, root: Path) -> None:
        self.root, self.pods = root, ["main-broker-0"]
        self.api = LocalApi(root / "objects")
        addresses = Addresses(root / "ports.json", lambda *_: self.pods)
        self.port = addresses.get_port("default", "main-broker-0", 9092)
        self.folders = UserFolders(self.api, root / "users", addresses)

    def write_user(self, own: Credentials, namespace: str = "default") -> None:
        """Store a user with its Secret, as the operator does."""
        kind = "tls" if own.pair else "scram-sha-512"
        user: Any = make_manifest(
            "QueueUser", "worker", cluster="main", authentication={"type": kind}
        )
        data = users.build_secret_data(user, f"main-bootstrap.{namespace}.svc:9092", b"ca", own)
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"labels": {names.USER_LABEL: "worker"}},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        self.api.write(("QueueUser", namespace, "worker"), user)
        self.folders.on_change(self.api.write(("Secret", namespace, "worker"), secret))

    def list_files(self) -> dict[str, bytes]:
        """Return the content of all files by their path in `users`."""
        users_folder = self.root / "users"
        files = [file for file in sorted(users_folder.rglob("*")) if file.is_file()]
        return {str(file.relative_to(users_folder)): file.read_bytes() for file in files}


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_folder_has_the_files_and_paths_of_this_machine(folders: Folders) -> None:
    folders.write_user(TLS)
    found, folder = folders.list_files(), folders.root / "users" / "worker"
    assert found["worker/client.properties"].decode().splitlines() == [
        f"bootstrap.servers=127.0.0.1:{folders.port}",
        "security.protocol=SSL",
        f"ssl.keystore.location={folder}/user.pem",
        "ssl.keystore.type=PEM",
        f"ssl.truststore.location={folder}/ca.crt",
        "ssl.truststore.type=PEM",
    ]
    assert f"ssl.key.location={folder}/user.key" in found["worker/librdkafka.properties"].decode()
    contents = [found[f"worker/{name}"] for name in ("ca.crt", "user.crt", "user.key", "user.p12")]
    assert contents == [b"ca", b"certificate", b"key", STORE]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


def test_a_folder_follows_the_secret_and_goes_with_the_user(folders: Folders) -> None:
    folders.write_user(TLS)
    folders.write_user(SCRAM)
    assert folders.list_files()["worker/password"] == b"word"
    assert not any("user." in file for file in folders.list_files())
    user = folders.api.objects["QueueUser", "default", "worker"]
    folders.api.delete_now(user)
    folders.folders.on_change(user)
    assert not (folders.root / "users" / "worker").exists()


def test_a_user_deleted_while_nothing_ran_loses_the_folder(folders: Folders) -> None:
    """Users of the same name in two namespaces have two folders."""
    folders.write_user(SCRAM)
    folders.write_user(SCRAM, "shop")
    folders.api.delete_now(folders.api.objects["QueueUser", "default", "worker"])
    assert {file.split("/")[0] for file in folders.list_files()} == {"worker", "worker@shop"}
    folders.folders.sync_all()
    assert {file.split("/")[0] for file in folders.list_files()} == {"worker@shop"}


def test_addresses_come_with_the_pods_and_stay_without_them(folders: Folders) -> None:
    folders.pods.clear()
    folders.write_user(SCRAM)
    assert folders.list_files() == {}
    cluster = make_manifest("QueueCluster", "main")
    cluster["metadata"]["namespace"] = "default"
    for pods in (["main-broker-0"], []):
        folders.pods[:] = pods
        folders.folders.on_change(cluster)
        properties = folders.list_files()["worker/client.properties"].decode()
        assert properties.startswith(f"bootstrap.servers=127.0.0.1:{folders.port}\n")


def test_a_secret_of_your_own_gets_no_folder(folders: Folders) -> None:
    folders.write_user(SCRAM)
    secret = folders.api.objects["Secret", "default", "worker"]
    own = {**secret, "metadata": {**secret["metadata"], "labels": {}}}
    folders.api.write(("Secret", "default", "worker"), own)
    folders.folders.sync_all()
    assert folders.list_files() == {}

"""Keycloak, a real identity provider: a program that Maven fetches once, and a realm in memory.

Its program and its build, which takes a minute, stay in `build/keycloak`.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.brokers.ports import free_ports
from support.kafka.maven import fetched
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "26.5.6"
SHA256 = "490189d9dff05272432d51f71a069462eeca97f2920a694d539a1e6c26a5a347"
FOLDER = Path(__file__).parents[3] / "build" / "keycloak"
#: The password of all users.
PASSWORD = "a long passw0rd"
REALM, USERS, SESSIONS = "main", "/users", "/sessions"
#: These end a hang. They are not limits on speed.
BUILD_S, START_S, ANSWER_S = 900, 600, 60
#: Short runs: little memory, and no time for the second compiler.
_JAVA = {"JAVA_OPTS_KC_HEAP": "-Xmx400m", "JAVA_OPTS_APPEND": "-XX:TieredStopAtLevel=1"}


def home() -> Path:
    """Return the folder of a Keycloak that is ready to start."""
    found = FOLDER / f"keycloak-{VERSION}"
    if found.exists():
        return found
    artifact = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
    packed = fetched(artifact, FOLDER, f"keycloak-quarkus-dist-{VERSION}.zip", SHA256)
    # Another name until it is complete.
    work = FOLDER / "work"
    shutil.rmtree(work, ignore_errors=True)
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(work)
    script = work / found.name / "bin" / "kc.sh"
    subprocess.run(
        ["sh", str(script), "build", "--db=dev-mem"],
        env={**os.environ, **_JAVA},
        check=True,
        capture_output=True,
        timeout=BUILD_S,
    )
    (work / found.name).rename(found)
    return found


class Keycloak:
    """A running Keycloak with a realm that `realm` describes. The caller kills it."""

    def __init__(self, log: Path, **realm: object) -> None:
        port, management = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.issuer = f"{self.url}/realms/{REALM}"
        self.token_url = f"{self.issuer}/protocol/openid-connect/token"
        self.keys_url = f"{self.issuer}/protocol/openid-connect/certs"
        self.log = log
        options = ["--optimized", "--cache=local", "--http-enabled=true", "--http-host=127.0.0.1"]
        options += [f"--http-port={port}", f"--http-management-port={management}"]
        options += [f"--hostname={self.url}"]
        root = {"KC_BOOTSTRAP_ADMIN_USERNAME": "root", "KC_BOOTSTRAP_ADMIN_PASSWORD": PASSWORD}
        script = home() / "bin" / "kc.sh"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["sh", str(script), "start", *options],
                env={**os.environ, **_JAVA, **root},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            eventually(self._answers, timeout_s=START_S, what="Keycloak")
            self.call("POST", "", {"realm": REALM, "enabled": True, **realm})
        except BaseException:
            self.kill()
            raise

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise ChildProcessError(f"Keycloak has ended:\n{self.log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/realms/master", timeout=ANSWER_S):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it, if it has not been killed."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Call the API for administrators. `path` is behind that of the realm."""
        request = urllib.request.Request(
            f"{self.url}/admin/realms{f'/{REALM}{path}' if path else ''}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.root_token()}", "Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def root_token(self) -> str:
        """Return a token of another realm, for the administrator."""
        form = {"client_id": "admin-cli", "grant_type": "password", "username": "root"}
        url = f"{self.url}/realms/master/protocol/openid-connect/token"
        return self._token(url, {**form, "password": PASSWORD})

    def token(self, client: str, secret: str) -> str:
        """Return an access token for a client's service account."""
        login = base64.b64encode(f"{client}:{secret}".encode()).decode()
        form = {"grant_type": "client_credentials"}
        return self._token(self.token_url, form, {"Authorization": f"Basic {login}"})

    @staticmethod
    def _token(url: str, form: Mapping[str, str], headers: Mapping[str, str] = {}) -> str:
        data = urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(url, data, dict(headers))
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            found: str = json.load(answer)["access_token"]
            return found

    def keys(self) -> bytes:
        """Return the keys that sign tokens."""
        with urllib.request.urlopen(self.keys_url, timeout=ANSWER_S) as answer:
            found: bytes = answer.read()
            return found

    def add_client(self, client: Mapping[str, object]) -> None:
        self.call("POST", "/clients", client)

    def add_user(self, name: str) -> None:
        """Add a user with `PASSWORD`."""
        password = {"type": "password", "value": PASSWORD, "temporary": False}
        names = {"username": name, "firstName": name, "lastName": "Example"}
        more = {"email": f"{name}@example.com", "enabled": True, "credentials": [password]}
        self.call("POST", USERS, {**names, **more})

    def sessions(self, user: str) -> list[set[str]]:
        """Return the clients in each session of a user."""
        found = self.call("GET", f"{self._user(user)}{SESSIONS}")
        return [set(one["clients"].values()) for one in found]

    def end_sessions(self, user: str) -> None:
        """End each session of a user, as an administrator does."""
        for one in self.call("GET", f"{self._user(user)}{SESSIONS}"):
            self.call("DELETE", f"{SESSIONS}/{one['id']}")

    def _user(self, name: str) -> str:
        """Return the path of a user."""
        (found,) = self.call("GET", f"{USERS}?username={name}&exact=true")
        return f"{USERS}/{found['id']}"

    def events(self, type: str) -> list[dict[str, Any]]:
        """Return the events of a type in `enabledEventTypes` of the realm."""
        found: list[dict[str, Any]] = self.call("GET", f"/events?type={type}&max=1000")
        return found

    def rotate(self) -> None:
        """Sign new tokens by a new key."""
        config = {"priority": ["200"], "algorithm": ["RS256"], "keySize": ["2048"]}
        kind = {"providerId": "rsa-generated", "providerType": "org.keycloak.keys.KeyProvider"}
        self.call("POST", "/components", {"name": "new", **kind, "config": config})

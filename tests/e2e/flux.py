"""Flux's own controllers on the test cluster, and a git server with the repository they read.

The controllers are built from Go modules at pinned versions, with the manifests and definitions of
the same modules. The git server is a pod; a test pushes through `kubectl exec`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster import images
from e2e.cluster.layout import REPOSITORY
from e2e.cluster.programs import FLUX, module_directory
from e2e.resources import Resources
from support.runs.conditions import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
NAMESPACE = "flux-system"
EXAMPLE = REPOSITORY / "examples" / "gitops"
#: Time for a change in git to be applied, by controllers that are idle otherwise.
APPLIED_S = 120
URL = f"http://git.{NAMESPACE}.svc:8080/cgi-bin/git/platform.git"
#: The git server: an empty repository behind git's own CGI program.
SERVE = """
cd /var/git
git init --quiet --bare --initial-branch=main platform.git
mkdir cgi-bin
printf '#!/bin/sh\\nexec git http-backend\\n' > cgi-bin/git
chmod +x cgi-bin/git
exec python3 -m http.server --cgi --directory /var/git 8080
"""
PUSH = f"ext::kubectl exec -i --namespace={NAMESPACE} git -- %S /var/git/platform.git"


class Flux:
    """Flux in its namespace, with rights over the whole cluster as `flux install` gives them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.resources = Resources(cluster, NAMESPACE)

    def install(self) -> None:
        for name in FLUX:
            self.cluster.load(images.program_archive(name, image(name)))
        self.cluster.load(images.git_archive())
        force = ("--server-side", "--force-conflicts")
        for folder in crds():
            self.cluster.kubectl("apply", *force, f"--filename={folder}")
        self.cluster.kubectl("create", "namespace", NAMESPACE)
        self.resources.apply(*controllers(), *rights(), git_pod(), git_service())
        for name in FLUX:
            wait = ("rollout", "status", f"deployment/{name}", "--timeout=120s")
            self.resources.kubectl(*wait)
        self.resources.kubectl("wait", "--for=condition=Ready", "pod/git", "--timeout=60s")

    def uninstall(self) -> None:
        """Remove Flux. Its objects go first, while the controllers remove their finalizers."""
        kinds = "kustomizations,helmreleases,helmcharts,gitrepositories"
        self.resources.kubectl("delete", kinds, "--all", "--timeout=120s", check=False)
        self.cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
        for folder in crds():
            self.cluster.kubectl("delete", "--ignore-not-found", f"--filename={folder}")
        self.cluster.kubectl("delete", "clusterrolebinding", "flux", "--ignore-not-found")

    def reconcile(self, what: str) -> None:
        """Let Flux look at an object now instead of at its interval."""
        stamp = str(self.resources.get(what)["metadata"]["resourceVersion"])
        note = f"reconcile.fluxcd.io/requestedAt={stamp}"
        self.resources.kubectl("annotate", "--overwrite", what, note)

        def handled() -> bool:
            return self.resources.status(what).get("lastHandledReconcileAt") == stamp

        eventually(handled, timeout_s=APPLIED_S, what=f"Flux looks at {what}")

    def wait_applied(self, name: str, revision: str) -> None:
        """Wait until a Kustomization is ready with this commit."""

        def applied() -> bool:
            status = self.resources.status(f"kustomization/{name}")
            assert status.get("lastAppliedRevision", "").endswith(revision), status
            ready = self.resources.condition(f"kustomization/{name}")
            assert ready["status"] == "True", ready
            return True

        eventually(applied, timeout_s=APPLIED_S)

    def wait_failed(self, name: str, revision: str) -> str:
        """Wait until a Kustomization has failed with this commit; return the message."""

        def failed() -> str:
            status = self.resources.status(f"kustomization/{name}")
            assert status.get("lastAttemptedRevision", "").endswith(revision), status
            ready = self.resources.condition(f"kustomization/{name}")
            assert ready["reason"] == "HealthCheckFailed", ready
            return ready["message"]

        return eventually(failed, timeout_s=APPLIED_S)


class Platform:
    """A working copy of the repository that Flux reads: the example with the chart."""

    def __init__(self, flux: Flux, folder: Path) -> None:
        self.flux = flux
        self.folder = folder
        shutil.copytree(EXAMPLE, folder)
        shutil.copytree(REPOSITORY / "helm" / "shoal", folder / "charts" / "shoal")
        self.edit("flux/base/source.yaml", "https://git.example.com/team/platform.git", URL)
        self.git("init", "--quiet", "--initial-branch=main")
        self.revision = self.commit("platform: add a queue")

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that a file has exactly once."""
        file = self.folder / path
        text = file.read_text()
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        file.write_text(text.replace(old, new))

    def commit(self, subject: str) -> str:
        """Commit everything, push it, let Flux fetch it, and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", f"--message={subject}")
        return self._push()

    def revert(self) -> str:
        """Take the last commit back by another one, as `commit` does."""
        self.git("revert", "--no-edit", "HEAD")
        return self._push()

    def _push(self) -> str:
        self.git("push", "--quiet", PUSH, "main")
        self.revision = self.git("rev-parse", "HEAD").strip()
        if self.flux.resources.find("gitrepository/platform"):
            self.flux.reconcile("gitrepository/platform")
        return self.revision

    def git(self, *argv: str) -> str:
        own = ("user.name=platform", "user.email=platform@example.com", "protocol.ext.allow=always")
        settings = [word for setting in own for word in ("-c", setting)]
        done = subprocess.run(
            ("git", *settings, *argv),
            cwd=self.folder,
            env={**os.environ, **self.flux.cluster.environment()},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def image(name: str) -> str:
    return f"localhost/fluxcd/{name}:pinned"


def crds() -> list[Path]:
    """Return the folders with the definitions of the controllers."""
    return [module_directory("flux", f"github.com/fluxcd/{n}") / "config/crd/bases" for n in FLUX]


def controllers() -> Iterator[Manifest]:
    """Return the Deployments and the Service in the modules, with the images of the cluster."""
    for name in FLUX:
        folder = module_directory("flux", f"github.com/fluxcd/{name}") / "config" / "manager"
        for file in ("deployment.yaml", "service.yaml"):
            if (folder / file).exists():
                yield from map(adapted, yaml.safe_load_all((folder / file).read_text()))


def adapted(manifest: Manifest) -> Manifest:
    """Return a manifest of Flux for the test cluster. The images contain a program alone, so the
    pod names the user. A dependency that is not ready is looked at again soon."""
    if manifest["kind"] != "Deployment":
        return manifest
    name = manifest["metadata"]["name"]
    pod = manifest["spec"]["template"]["spec"]
    pod["serviceAccountName"] = "flux"
    pod["securityContext"] = {**pod.get("securityContext", {}), "runAsUser": 65534}
    (container,) = pod["containers"]
    container["image"], container["imagePullPolicy"] = image(name), "Never"
    container["args"].append("--requeue-dependency=2s")
    return manifest


def rights() -> Iterator[Manifest]:
    """Return the account of the controllers, which may do everything."""
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "flux"}}
    rbac = "rbac.authorization.k8s.io"
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "flux"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "flux", "namespace": NAMESPACE}],
    }


def git_pod() -> Manifest:
    env = {"GIT_PROJECT_ROOT": "/var/git", "GIT_HTTP_EXPORT_ALL": "1", "HOME": "/var/git"}
    container = {
        "name": "git",
        "image": images.GIT_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-ec", SERVE],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "volumeMounts": [{"name": "repositories", "mountPath": "/var/git"}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "git", "labels": {"app": "git"}},
        "spec": {
            "containers": [container],
            "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000},
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "repositories", "emptyDir": {}}],
        },
    }


def git_service() -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "git"},
        "spec": {"selector": {"app": "git"}, "ports": [{"port": 8080}]},
    }

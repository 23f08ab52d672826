"""A Kubernetes cluster that the user has already, and has agreed to use: that of kubectl's current
context.

`SHOAL_CLUSTER=current-context` is the consent; without it, nothing chooses it. The cluster is never
started or removed. The context is copied at the start, so a later `kubectl config use-context`
moves nothing. Images get in by the command that made the nodes: kind, minikube or k3d.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .backend import Cluster, tool
from .commands import run
from .layout import ClusterError

#: Start of a context's name -> the command that loads an archive into its nodes. The rest of the
#: name is that of the cluster.
LOADERS = {
    "kind-": ("kind", "load", "image-archive", "{archive}", "--name={cluster}"),
    "k3d-": ("k3d", "image", "import", "{archive}", "--cluster={cluster}"),
    "minikube": ("minikube", "image", "load", "{archive}"),
    # Its nodes see the engine's own images.
    "docker-desktop": ("docker", "load", "--input={archive}"),
}


class Context(Cluster):
    """The cluster of the current context; its state directory has only a copy of the access."""

    kind = "context"

    @property
    def name(self) -> str:
        """The name of the context; raise ClusterError if there is none."""
        shown = run(self.tool("kubectl"), "config", "current-context", check=False)
        if shown.returncode:
            raise ClusterError(
                "kubectl has no current context: choose one with `kubectl config use-context NAME`."
            )
        return shown.stdout.strip()

    @property
    def programs(self) -> tuple[str, ...]:
        return tuple(name for name in ("kubectl", "helm") if not shutil.which(name))

    def tool(self, name: str) -> Path:
        """Return the user's own program, which knows how to log in to the user's cluster."""
        installed = shutil.which(name)
        return Path(installed) if installed else tool(name)

    def up(self) -> None:
        with self._lock():
            self.require()
            self._down()
            self._up()
            self.laps(f"the cluster of the context {self.name} answers")

    def is_up(self) -> bool:
        return self._answers()

    def install(self) -> None:
        self.require()

    def stop_kubelet(self) -> None:
        raise ClusterError("The kubelets of your own cluster are left alone: use another cluster.")

    start_kubelet = stop_kubelet

    def in_node(self, *argv: str) -> None:
        raise ClusterError(f"`{argv[0]}` may not run in a node of your own cluster.")

    def name_image(self, image: str, other: str) -> None:
        raise ClusterError(f"{image} gets no other name in your own cluster.")

    def require(self) -> None:
        if not self._loader():
            raise ClusterError(
                f"Images cannot be loaded into the nodes of the context {self.name}: only "
                f"{', '.join(LOADERS)} are known. Choose such a context, or leave the choice of a "
                "cluster to Shoal."
            )

    def _provide(self) -> None:
        self.tool("kubectl"), self.tool("helm")

    def _up(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.touch(mode=0o600)
        view = ("config", "view", "--minify", "--flatten", "--raw")
        self.kubeconfig.write_text(run(self.tool("kubectl"), *view).stdout)
        if not self._answers():
            raise ClusterError(
                f"The cluster of the context {self.name} does not answer: see `kubectl get nodes`."
            )

    def _down(self) -> None:
        shutil.rmtree(self.state, ignore_errors=True)

    def _load(self, archive: Path) -> None:
        words = self._loader()
        cluster = self.name.partition("-")[2]
        run(*(word.format(archive=archive, cluster=cluster) for word in words))

    def _loader(self) -> tuple[str, ...]:
        """Return the command that loads an archive, or nothing."""
        name = self.name
        return next((words for start, words in LOADERS.items() if name.startswith(start)), ())

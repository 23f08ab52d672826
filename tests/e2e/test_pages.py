"""The commands of the quick start for platform teams print what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from e2e.cluster.layout import REPOSITORY
from e2e.conftest import new_namespace
from support.pages.console import Console, steps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from e2e.cluster.backend import Cluster
    from e2e.release import Release

PAGE = REPOSITORY / "docs" / "quickstart" / "platform.md"
#: The mark of commands that need Kubernetes.
KUBERNETES = "kubernetes"


def test_the_commands_of_the_page_print_what_it_shows(
    cluster: Cluster, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The page installs the chart, which a Kubernetes cluster can have once.
    release.uninstall()
    # The page works in the current namespace of kubectl; this is an empty one.
    name = new_namespace(cluster, "quickstart")
    config = tmp_path / "kubeconfig"
    config.write_text(cluster.kubeconfig.read_text())
    for folder in ("examples", "helm", "crds"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    monkeypatch.setenv("PATH", cluster.environment()["PATH"])
    monkeypatch.setenv("KUBECONFIG", str(config))
    with Console(tmp_path, "", timeout_s=400) as console:
        console.run(f"kubectl config set-context --current --namespace={name}")
        try:
            console.try_all(steps(PAGE.read_text(), KUBERNETES))
        finally:
            console.run("helm uninstall shoal --namespace shoal --ignore-not-found --wait")
            cluster.kubectl("delete", "namespace", name, "--wait=false")
            release.install()

"""Which Kubernetes cluster tests and the demo use, and what several clusters share. A user's own
cluster is only used with consent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from e2e.cluster import host, provision
from e2e.cluster.backend import choose
from e2e.cluster.context import Context
from e2e.cluster.layout import ClusterError, Layout
from e2e.cluster.local import Local
from e2e.cluster.provision import Plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the name of the current context, as the only kubectl on the PATH reads it."""
    name = tmp_path / "name"
    name.write_text("kind-mine\n")
    for program, script in {"kubectl": f"cat {name}", "helm": "true", "docker": "false"}.items():
        file = tmp_path / program
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("SHOAL_CLUSTER", raising=False)
    return name


@pytest.mark.usefixtures("current")
def test_a_cluster_of_the_users_own_is_not_used_without_consent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(choose(Layout()), Local)
    monkeypatch.setenv("SHOAL_CLUSTER", "current-context")
    assert isinstance(choose(Layout()), Context)


@pytest.mark.parametrize("name", ["kind-mine", "k3d-mine", "minikube", "docker-desktop"])
def test_a_context_whose_nodes_take_images_is_accepted(current: Path, name: str) -> None:
    current.write_text(f"{name}\n")
    Context(Layout()).install()


def test_a_context_whose_nodes_take_no_images_is_refused_before_anything_begins(
    current: Path,
) -> None:
    current.write_text("production\n")
    with pytest.raises(ClusterError, match="nodes of the context production"):
        provision.provide(Context(Layout()), ())


def test_down_and_the_kubelet_of_an_own_cluster_are_left_alone() -> None:
    with pytest.raises(ClusterError, match="left alone"):
        Context(Layout()).stop_kubelet()


def test_a_plan_names_what_is_missing_and_its_time() -> None:
    both = Plan(("hyper", "coredns", "pause"), ("broker", "spark"))
    assert both.minutes == pytest.approx(5.2 + 0.5 * 3.6)
    assert "compile hyper, coredns, pause from Go modules and build the images broker" in str(both)
    assert "about 7 minutes on two cores" in str(both)
    assert "shoal already" in str(Plan((), ()))
    assert Plan((), ()).minutes == 0.0


def test_the_last_of_two_clusters_restores_what_the_first_one_found(tmp_path: Path) -> None:
    setting = tmp_path / "overcommit_memory"
    setting.write_text("1")
    notes = [tmp_path / "run" / name / "sysctls.json" for name in ("one", "two")]
    for note in notes:
        note.parent.mkdir(parents=True)
    first, second = notes
    first.write_text(json.dumps({str(setting): "0"}))
    host.save_sysctls(second)
    assert second.read_text() == first.read_text()
    host.restore_sysctls(first)
    assert setting.read_text() == "1", "the other cluster's kubelet still needs it"
    first.unlink()
    host.restore_sysctls(second)
    assert setting.read_text() == "0"

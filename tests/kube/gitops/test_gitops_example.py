"""The repository in `examples/gitops`: each manifest fits its schema, and pruning keeps data.

`tests/e2e/test_install.py` gives the environments to an API server, and
`tests/e2e/test_gitops.py` gives the repository to Flux.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from e2e.cluster.programs import downloaded
from kube.structural import Manifest, errors, schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/gitops"
FILES = sorted(path for path in EXAMPLE.rglob("*.yaml"))
#: Where the definitions of Flux and of Argo CD are: a Go module and a folder in it. The version of
#: Argo CD is that of the engine in `tests/e2e/cluster/go/argocd-lua`.
DEFINITIONS = {
    "github.com/fluxcd/source-controller@v1.9.6": "config/crd/bases",
    "github.com/fluxcd/kustomize-controller@v1.9.6": "config/crd/bases",
    "github.com/fluxcd/helm-controller@v1.6.0": "config/crd/bases",
    "github.com/argoproj/argo-cd/v3@v3.5.7": "manifests/crds",
}
FLUX = [f"{name}.toolkit.fluxcd.io" for name in ("source", "kustomize", "helm")]
THEIRS = tuple(f"{group}/" for group in ("argoproj.io", *FLUX))
KUSTOMIZATION = "kustomize.config.k8s.io/v1beta1"
WAVE = "argocd.argoproj.io/sync-wave"
#: Fields that name another resource of the same namespace, with its kind.
REFERENCES = {"cluster": "QueueCluster", "shareGroup": "ShareGroup", "user": "QueueUser"}


def manifests(path: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def kustomizations() -> Iterator[tuple[Path, Manifest]]:
    for path in FILES:
        if path.name == "kustomization.yaml":
            yield path, manifests(path)[0]


def patches() -> set[Path]:
    """Return the files that contain a part of a manifest."""
    return {
        path.parent / patch["path"]
        for path, kustomization in kustomizations()
        for patch in kustomization.get("patches", ())
        if "path" in patch
    }


QUEUE = [one for path in sorted((EXAMPLE / "queue").glob("*.yaml")) for one in manifests(path)]
RESOURCES = [one for one in QUEUE if one["apiVersion"] != KUSTOMIZATION]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(EXAMPLE).as_posix())
def test_our_resources_fit_their_schemas(path: Path) -> None:
    ours = [one for one in manifests(path) if one["apiVersion"].startswith("shoal.dev/")]
    found = [error for one in ours for error in errors(one)]
    if path in patches():
        found = [error for error in found if not error.endswith(": required")]
    assert found == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"partitons": 3}, "spec.partitons: the schema has no such field"),
        ({"partitions": "3"}, "spec.partitions: '3' is no integer"),
        ({"partitions": 0}, "spec.partitions: 0 is less than minimum 1"),
        ({"deletionPolicy": "Keep"}, "spec.deletionPolicy: 'Keep' is none of"),
        ({"cluster": None}, "spec.cluster: None is no string"),
    ],
)
def test_a_wrong_field_is_found(change: Manifest, error: str) -> None:
    (topic, _) = manifests(EXAMPLE / "queue/topics.yaml")
    (found,) = errors({**topic, "spec": {**topic["spec"], **change}})
    assert found.startswith(error)


@pytest.mark.nightly
def test_resources_of_flux_and_argo_cd_fit_their_schemas() -> None:
    """It downloads 60 MB of Go modules."""
    folders = [downloaded(module) / folder for module, folder in DEFINITIONS.items()]
    theirs = [
        one for path in FILES for one in manifests(path) if one["apiVersion"].startswith(THEIRS)
    ]
    assert len(theirs) == 10
    for one in theirs:
        (found,) = [f for f in folders if (one["apiVersion"], one["kind"]) in schemas(f)]
        assert errors(one, found) == []


def test_every_file_is_used() -> None:
    """Each manifest is in a kustomization, or is applied by the command in the README."""
    used = set(patches())
    for path, kustomization in kustomizations():
        used.add(path)
        used |= {path.parent / name for name in kustomization["resources"]}
    readme = (EXAMPLE / "README.md").read_text()
    left = [path.relative_to(EXAMPLE).as_posix() for path in FILES if path not in used]
    assert [name for name in left if f"`{name}`" not in readme] == []
    folders = {
        (path.parent / name).resolve()
        for path, k in kustomizations()
        for name in k["resources"]
        if not name.endswith(".yaml")
    }
    assert all((folder / "kustomization.yaml").exists() for folder in folders)


def test_references_name_resources_of_the_queue() -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in RESOURCES}
    for one in RESOURCES:
        for field, kind in REFERENCES.items():
            if field in one["spec"]:
                assert (kind, one["spec"][field]) in names, one["metadata"]["name"]


def test_a_wave_follows_what_it_needs() -> None:
    waves = {
        (one["kind"], one["metadata"]["name"]): int(one["metadata"]["annotations"][WAVE])
        for one in RESOURCES
    }
    for one in RESOURCES:
        own = waves[one["kind"], one["metadata"]["name"]]
        for field, kind in REFERENCES.items():
            if field in one["spec"]:
                assert waves[kind, one["spec"][field]] < own, one["metadata"]["name"]


def loses_data(manifest: Manifest) -> bool:
    """Return whether deleting a resource deletes records, volumes or certificate authorities."""
    kind = manifest["kind"]
    deletes = manifest.get("spec", {}).get("deletionPolicy") == "Delete"
    return kind in ("Namespace", "QueueCluster") or deletes


def test_pruning_keeps_data() -> None:
    namespaces = [
        one for e in EXAMPLE.glob("environments/*/namespace.yaml") for one in manifests(e)
    ]
    assert len(namespaces) == 2
    for one in [*RESOURCES, *namespaces]:
        annotations = one["metadata"]["annotations"]
        argo = "Prune=false" in annotations.get("argocd.argoproj.io/sync-options", "")
        flux = annotations.get("kustomize.toolkit.fluxcd.io/prune") == "disabled"
        assert (argo, flux) == (loses_data(one),) * 2, one["metadata"]["name"]


def test_definitions_outlive_the_chart() -> None:
    """Without a definition, Kubernetes deletes all resources of the kind. Argo CD applies those in
    a chart, and would delete them with its Application. Flux and Helm leave them."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        (crd,) = manifests(path)
        options = crd["metadata"]["annotations"]["argocd.argoproj.io/sync-options"]
        assert options.split(",") == ["Prune=false", "Delete=false"], path.name


def test_both_tools_read_folders_that_exist() -> None:
    paths = []
    for path in FILES:
        for one in manifests(path):
            spec = one.get("spec", {})
            if one["kind"] == "Application":
                paths.append(spec["source"]["path"])
            elif one["apiVersion"].startswith("kustomize.toolkit.fluxcd.io/"):
                paths.append(spec["path"])
            elif one["kind"] == "HelmRelease":
                paths.append(spec["chart"]["spec"]["chart"])
    found = {path.removeprefix("./") for path in paths}
    # The chart of a release is added to a copy of the folder.
    assert found - {"charts/shoal"} == {
        "environments/staging",
        "environments/production",
        "flux/operator",
    }
    assert all(
        (EXAMPLE / path / "kustomization.yaml").exists() for path in found - {"charts/shoal"}
    )


def test_an_application_may_apply_what_it_contains() -> None:
    """Its AppProject has the destination, the repository and the cluster-wide kinds."""
    for path in EXAMPLE.glob("argocd/*.yaml"):
        found = manifests(path)
        projects = [one["spec"] for one in found if one["kind"] == "AppProject"]
        for spec in (one["spec"] for one in found if one["kind"] == "Application"):
            (project,) = projects
            assert spec["source"]["repoURL"] in project["sourceRepos"]
            assert spec["destination"] in project["destinations"]
            kinds = {one["kind"] for one in project["clusterResourceWhitelist"]}
            assert kinds == CLUSTER_WIDE


#: Kinds of the chart, its definitions and the environments that have no namespace.
CLUSTER_WIDE = {"Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}


def test_the_project_allows_the_cluster_wide_kinds_of_the_chart() -> None:
    templates = (ROOT / "helm/shoal/templates").glob("*.yaml")
    kinds = {
        line.removeprefix("kind: ").strip()
        for path in templates
        for line in path.read_text().splitlines()
        if line.startswith("kind: Cluster")
    }
    assert kinds <= CLUSTER_WIDE
    assert kinds == {"ClusterRole", "ClusterRoleBinding"}

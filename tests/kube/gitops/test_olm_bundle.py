"""The bundle for the Operator Lifecycle Manager: it fits OLM's definition, and has what the chart
has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import downloaded
from kube.structural import errors
from release import olm
from release.checkout import ReleaseError
from shoal_operator.__main__ import list_namespaces
from support.runs.machine import lacking

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[3]
OLM = "github.com/operator-framework/api@v0.31.0"
CSV = "manifests/shoal-operator.clusterserviceversion.yaml"


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The files of the bundle; Helm renders the chart once, and may be built for it."""
    try:
        return olm.make_files(ROOT, "1.2.3")
    except ReleaseError as error:
        lacking(f"helm cannot be had: {error}")


@pytest.fixture(scope="module")
def csv(files: dict[str, str]) -> Manifest:
    made: Manifest = yaml.safe_load(files[CSV])
    return made


def test_the_csv_fits_the_definition_of_olm(csv: Manifest) -> None:
    try:
        folder = downloaded(OLM) / "crds"
    except ClusterError as error:
        lacking(f"the definitions of OLM cannot be had: {error}")
    assert errors(csv, folder) == []
    assert csv["metadata"]["name"] == "shoal-operator.v1.2.3"


def test_each_definition_is_in_the_bundle_and_owned(files: dict[str, str], csv: Manifest) -> None:
    made = [yaml.safe_load(text) for name, text in files.items() if name.startswith("manifests/")]
    defined = {
        (one["metadata"]["name"], version["name"], one["spec"]["names"]["kind"])
        for one in made
        if one["kind"] == "CustomResourceDefinition"
        for version in one["spec"]["versions"]
    }
    owned = csv["spec"]["customresourcedefinitions"]["owned"]
    assert len(owned) == len(defined) > 7
    assert {(one["name"], one["version"], one["kind"]) for one in owned} == defined
    examples = json.loads(csv["metadata"]["annotations"]["alm-examples"])
    assert {one["kind"] for one in examples} >= {"QueueCluster", "QueueTopic", "ShareGroup"}
    assert [errors(one) for one in examples] == [[]] * len(examples)


def test_the_operator_gets_the_namespaces_of_the_operator_group(csv: Manifest) -> None:
    (deployment,) = csv["spec"]["install"]["spec"]["deployments"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert f"--namespace=$({olm.TARGETS})" in container["args"]
    assert "--all-namespaces" not in container["args"]
    assert "--openshift=auto" in container["args"]
    first, *variables = container["env"]
    assert first["name"] == olm.TARGETS, "before those that refer to it"
    assert "olm.targetNamespaces" in first["valueFrom"]["fieldRef"]["fieldPath"]
    env = [one["name"] for one in variables]
    assert env.index("SHOAL_OPERATOR_NAMESPACE") < env.index("SHOAL_SCALE_URL")
    assert "runAsUser" not in pod["securityContext"], "OpenShift assigns it"
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "namespace: shoal\n" not in yaml.safe_dump(csv)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([""], []),
        (["a"], ["a"]),
        (["a,b"], ["a", "b"]),
        (["a", "b", "a"], ["a", "b"]),
    ],
)
def test_the_namespaces_of_the_command_line(given: list[str], found: list[str]) -> None:
    assert list_namespaces(given) == found


def test_the_roles_are_those_of_the_chart(files: dict[str, str], csv: Manifest) -> None:
    install = csv["spec"]["install"]["spec"]
    (own,), (everywhere,) = install["permissions"], install["clusterPermissions"]
    (deployment,) = install["deployments"]
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    assert own["serviceAccountName"] == everywhere["serviceAccountName"] == account

    def verbs(rules: list[Manifest], resource: str) -> set[str]:
        return {v for rule in rules if resource in rule["resources"] for v in rule["verbs"]}

    assert verbs(own["rules"], "secrets") == {"get", "list", "watch", "create", "patch"}
    assert verbs(everywhere["rules"], "secrets") == set()
    assert verbs(everywhere["rules"], "leases") == {"get", "create", "update", "list"}
    assert verbs(everywhere["rules"], "nodes") == {"get"}
    made = [yaml.safe_load(text) for name, text in files.items() if name.startswith("manifests/")]
    roles = {one["metadata"]["name"]: one for one in made if one["kind"] == "ClusterRole"}
    people = [f"shoal-shoal-operator-{one}" for one in ("admin", "edit", "view")]
    assert sorted(roles) == [*people, "shoal-spark-driver"]
    bind = [rule for rule in own["rules"] if "bind" in rule["verbs"]]
    assert bind[0]["resourceNames"] == ["shoal-spark-driver"]
    (service,) = (one for one in made if one["kind"] == "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert "namespace" not in service["metadata"]


def test_the_metadata_name_the_package_and_its_folders(files: dict[str, str]) -> None:
    notes = yaml.safe_load(files["metadata/annotations.yaml"])["annotations"]
    prefix = "operators.operatorframework.io.bundle"
    assert notes[f"{prefix}.package.v1"] == "shoal"
    assert notes[f"{prefix}.manifests.v1"] == "manifests/"
    for name, value in notes.items():
        assert f"LABEL {name}={value}\n" in files["Containerfile"]

"""The bundle by which the Operator Lifecycle Manager installs the operator, as OperatorHub and
OpenShift have it.

Its content comes from the chart, so that the two cannot differ: the ClusterServiceVersion has the
Deployment and the rules of the roles. OLM creates roles for the namespaces that an OperatorGroup
names, and writes these into an annotation of the pods, from where the operator gets them.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster.backend import tool
from e2e.cluster.layout import ClusterError

from release import tar
from release.checkout import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from release.checkout import Checkout

Manifest = dict[str, Any]
PACKAGE, CHANNEL, NAMESPACE = "shoal", "stable", "shoal"
NAME = "shoal-operator"
KUBERNETES = "1.30.0"
#: The oldest OpenShift with that version of Kubernetes.
OPENSHIFT = "v4.17"
#: The variable with the namespaces of the OperatorGroup; empty for all.
TARGETS = "OLM_TARGET_NAMESPACES"
_LABELS = "operators.operatorframework.io"
MODES = ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")


def build(checkout: Checkout, sources: Path, into: Path) -> None:
    """Write the bundle as an archive. Raises `ReleaseError`."""
    into.mkdir()
    content = io.BytesIO()
    files = make_files(sources, checkout.version)
    tar.write(content, {name: text.encode() for name, text in files.items()}, checkout.time_s)
    packed = gzip.compress(content.getvalue(), mtime=0)
    (into / f"shoal-olm-bundle-{checkout.version}.tgz").write_bytes(packed)


def make_files(sources: Path, version: str) -> dict[str, str]:
    """Return the files of the bundle by their paths. Raises `ReleaseError`."""
    rendered = _render(sources / "helm" / "shoal")
    about = yaml.safe_load((sources / "helm" / "shoal" / "Chart.yaml").read_text())
    definitions = {
        path.name: path.read_text() for path in sorted((sources / "crds").glob("*.yaml"))
    }
    crds = [yaml.safe_load(text) for text in definitions.values()]
    manifests = {
        f"{NAME}.clusterserviceversion.yaml": _make_csv(rendered, about, crds, version),
        **{
            f"{manifest['metadata']['name']}.{manifest['kind'].lower()}.yaml": _drop_namespace(
                manifest
            )
            for manifest in rendered
            if manifest["kind"] == "Service" or manifest in _list_unbound(rendered)
        },
    }
    annotations = _make_annotations()
    labels = "".join(f"LABEL {name}={value}\n" for name, value in annotations.items())
    copies = "".join(f"COPY {folder} /{folder}/\n" for folder in ("manifests", "metadata"))
    return {
        "Containerfile": f"FROM scratch\n{labels}{copies}",
        "metadata/annotations.yaml": yaml.safe_dump({"annotations": annotations}),
        **{f"manifests/{name}": text for name, text in definitions.items()},
        **{
            f"manifests/{name}": yaml.safe_dump(made, sort_keys=False, width=120)
            for name, made in manifests.items()
        },
    }


def _render(chart: Path) -> list[Manifest]:
    """Return the objects of the chart, for all namespaces and without ids of users, which OpenShift
    assigns."""
    command = ["template", PACKAGE, str(chart), f"--namespace={NAMESPACE}", "--no-hooks"]
    values = ("--set-json=watchNamespaces=[]", "--set=openshift=enabled")
    try:
        helm = tool("helm")
    except ClusterError as error:
        raise ReleaseError(str(error)) from None
    done = subprocess.run(
        [helm, *command, f"--kube-version={KUBERNETES}", *values],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"helm template failed: {done.stderr.strip()}")
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def _find(rendered: Iterable[Manifest], kind: str, name: str) -> Manifest:
    return next(o for o in rendered if (o["kind"], o["metadata"]["name"]) == (kind, name))


def _list_unbound(rendered: list[Manifest]) -> list[Manifest]:
    """Return the ClusterRoles that are not the operator's: for Spark's drivers, and for people."""
    bound = {o["roleRef"]["name"] for o in rendered if o["kind"] == "ClusterRoleBinding"}
    roles = [o for o in rendered if o["kind"] == "ClusterRole"]
    return [role for role in roles if role["metadata"]["name"] not in bound]


def _drop_namespace(manifest: Manifest) -> Manifest:
    """Return an object for the namespace into which OLM installs the operator."""
    meta = {key: value for key, value in manifest["metadata"].items() if key != "namespace"}
    return {**manifest, "metadata": meta}


def _make_annotations() -> dict[str, str]:
    return {
        f"{_LABELS}.bundle.mediatype.v1": "registry+v1",
        f"{_LABELS}.bundle.manifests.v1": "manifests/",
        f"{_LABELS}.bundle.metadata.v1": "metadata/",
        f"{_LABELS}.bundle.package.v1": PACKAGE,
        f"{_LABELS}.bundle.channels.v1": CHANNEL,
        f"{_LABELS}.bundle.channel.default.v1": CHANNEL,
        "com.redhat.openshift.versions": OPENSHIFT,
    }


def _make_csv(
    rendered: list[Manifest], about: Manifest, crds: list[Manifest], version: str
) -> Manifest:
    """Return the ClusterServiceVersion."""
    deployment = _find(rendered, "Deployment", NAME)
    notes = about["annotations"]
    examples = yaml.safe_load(notes["artifacthub.io/crdsExamples"])
    media_type, _, icon = about["icon"].removeprefix("data:").partition(";base64,")
    images = {env["name"]: env.get("value", "") for env in _get_container(deployment)["env"]}
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{NAME}.v{version}",
            "annotations": {
                "alm-examples": json.dumps(examples, indent=2),
                "capabilities": "Full Lifecycle",
                "categories": "Streaming & Messaging",
                "containerImage": _get_container(deployment)["image"],
                "description": about["description"],
                "olm.skipRange": f"<{version}",
            },
        },
        "spec": {
            "displayName": "Shoal",
            "description": about["description"],
            "version": version,
            "minKubeVersion": KUBERNETES,
            "maturity": "beta",
            "keywords": about["keywords"],
            "provider": {"name": "Shoal"},
            "icon": [{"mediatype": media_type, "base64data": icon}],
            "installModes": [{"type": mode, "supported": True} for mode in MODES],
            "customresourcedefinitions": {"owned": _list_owned(crds, notes)},
            "relatedImages": [
                {"name": "operator", "image": _get_container(deployment)["image"]},
                {"name": "broker", "image": images["SHOAL_BROKER_IMAGE"]},
                {"name": "spark", "image": images["SHOAL_SPARK_IMAGE"]},
            ],
            "install": {"strategy": "deployment", "spec": _make_install(rendered, deployment)},
        },
    }


def _list_owned(crds: list[Manifest], notes: Mapping[str, str]) -> list[Manifest]:
    """Return the definitions of the bundle, in each version."""
    words = {entry["name"]: entry for entry in yaml.safe_load(notes["artifacthub.io/crds"])}
    return [
        {
            "name": crd["metadata"]["name"],
            "version": version["name"],
            "kind": crd["spec"]["names"]["kind"],
            "displayName": words[crd["metadata"]["name"]]["displayName"],
            "description": words[crd["metadata"]["name"]]["description"],
        }
        for crd in crds
        for version in crd["spec"]["versions"]
    ]


def _make_install(rendered: list[Manifest], deployment: Manifest) -> Manifest:
    """Return the roles of the operator and its Deployment.

    OLM would give it the rules of a Role in the namespaces of the OperatorGroup only, so those of
    the Lease in its own namespace are valid everywhere.
    """
    prefix = f"{NAMESPACE}-{NAME}"
    own = _find(rendered, "ClusterRole", prefix)["rules"]
    unbound = _list_unbound(rendered)
    everywhere = [
        rule
        for role in rendered
        if role["kind"] in ("Role", "ClusterRole") and role not in unbound
        for rule in role["rules"]
        if role["metadata"]["name"] != prefix
    ]
    return {
        "permissions": [{"serviceAccountName": NAME, "rules": own}],
        "clusterPermissions": [{"serviceAccountName": NAME, "rules": everywhere}],
        "deployments": [
            {
                "name": NAME,
                "label": deployment["metadata"]["labels"],
                "spec": _adapt(deployment["spec"]),
            }
        ],
    }


def _adapt(spec: Manifest) -> Manifest:
    """Return the Deployment's spec for any namespace, with the namespaces of the OperatorGroup."""
    container = spec["template"]["spec"]["containers"][0]
    targets = {"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}}
    container["env"].insert(0, {"name": TARGETS, "valueFrom": targets})
    for variable in container["env"]:
        if variable["name"] == "SHOAL_SCALE_URL":
            variable["value"] = f"http://{NAME}.$(SHOAL_OPERATOR_NAMESPACE).svc:8080"
    arguments = {
        "--all-namespaces": f"--namespace=$({TARGETS})",
        "--openshift=enabled": "--openshift=auto",
    }
    container["args"] = [arguments.get(word, word) for word in container["args"]]
    spec["template"]["spec"]["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    return spec


def _get_container(deployment: Manifest) -> Manifest:
    container: Manifest = deployment["spec"]["template"]["spec"]["containers"][0]
    return container

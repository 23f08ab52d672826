"""What a namespace on OpenShift does to pods, on the test cluster.

The API server serves OpenShift's group, and policies act like the constraints `restricted-v2` in
namespaces with the label `LABEL`: one assigns a user, an fsGroup and a seccomp profile where a pod
sets none, the other refuses pods with ids outside of the range. `kube.restricted_v2` is the same
without a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml
from e2e.cluster.layout import POLICIES_API

if TYPE_CHECKING:
    from e2e.cluster.backend import Cluster

Manifest = dict[str, Any]
LABEL = "openshift"
NAME = "restricted-v2"
#: The number of ids in the range of a namespace.
RANGE = 10_000


def install(cluster: Cluster, first_id: int) -> None:
    """Serve OpenShift's group and add the policies; `first_id` begins the range of users."""
    manifests = [_definition(), *_assigning(first_id), *_refusing(first_id)]
    cluster.kubectl("apply", "--filename=-", stdin_text=yaml.safe_dump_all(manifests))
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=30s")


def uninstall(cluster: Cluster) -> None:
    """Remove all of it."""
    for kind in ("mutating", "validating"):
        policies = (f"{kind}admissionpolicybinding/{NAME}", f"{kind}admissionpolicy/{NAME}")
        cluster.kubectl("delete", "--ignore-not-found", *policies)
    cluster.kubectl("delete", "--ignore-not-found", f"crd/{CRD}")


CRD = "securitycontextconstraints.security.openshift.io"


def _definition() -> Manifest:
    names = {
        "kind": "SecurityContextConstraints",
        "plural": "securitycontextconstraints",
        "singular": "securitycontextconstraints",
    }
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": CRD},
        "spec": {
            "group": "security.openshift.io",
            "scope": "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def _policy(api: str, kind: str, spec: Manifest, **binding: Any) -> list[Manifest]:
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    constraints = {
        "resourceRules": [pods],
        "namespaceSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
    }
    meta = {"apiVersion": api, "metadata": {"name": NAME}}
    spec = {"failurePolicy": "Fail", "matchConstraints": constraints, **spec}
    return [
        {**meta, "kind": kind, "spec": spec},
        {**meta, "kind": f"{kind}Binding", "spec": {"policyName": NAME, **binding}},
    ]


def _assigning(first_id: int) -> list[Manifest]:
    own = "object.spec.securityContext"
    fields = {
        "runAsUser": str(first_id),
        "fsGroup": str(first_id),
        "seccompProfile": 'Object.spec.securityContext.seccompProfile{type: "RuntimeDefault"}',
    }
    mutations = [
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {
                "expression": f"has({own}) && has({own}.{field}) ? Object{{}} : Object{{spec: "
                f"Object.spec{{securityContext: Object.spec.securityContext{{{field}: {value}}}}}}}"
            },
        }
        for field, value in fields.items()
    ]
    spec = {"reinvocationPolicy": "Never", "mutations": mutations}
    return _policy(POLICIES_API, "MutatingAdmissionPolicy", spec)


def _refusing(first_id: int) -> list[Manifest]:
    every = "(object.spec.containers + object.spec.?initContainers.orValue([]))"
    last = first_id + RANGE
    validations = []
    for field in ("runAsUser", "fsGroup"):
        value = f"object.spec.securityContext.{field}"
        text = f"{value} >= {first_id} && {value} < {last}"
        validations.append({"expression": text, "message": f"{field} is outside of the range"})
    rules = {
        "securityContext.runAsUser is outside of the range": (
            f"!has(c.securityContext.runAsUser) || c.securityContext.runAsUser >= {first_id} && "
            f"c.securityContext.runAsUser < {last}"
        ),
        "privileges escalate": "!c.securityContext.?allowPrivilegeEscalation.orValue(false)",
        "privileged is true": "!c.securityContext.?privileged.orValue(false)",
        "capabilities are added": "!has(c.securityContext.capabilities) || "
        "!has(c.securityContext.capabilities.add)",
        "capabilities are not dropped": "!has(c.securityContext.capabilities) || "
        "has(c.securityContext.capabilities.drop)",
    }
    validations += [
        {
            "expression": f"{every}.all(c, !has(c.securityContext) || {rule})",
            "message": message,
        }
        for message, rule in rules.items()
    ]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        expression = f"!object.spec.?{field}.orValue(false)"
        validations.append({"expression": expression, "message": f"{field} is true"})
    spec = {"validations": validations}
    api = "admissionregistration.k8s.io/v1"
    return _policy(api, "ValidatingAdmissionPolicy", spec, validationActions=["Deny"])

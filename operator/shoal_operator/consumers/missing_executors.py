"""Why executors that a driver has requested do not exist.

A driver creates the pods of its executors itself. If the API server refuses one, no object has a
condition or an event about it: only the driver's log says so. So the operator compares what an
executor needs with the ResourceQuotas and LimitRanges of its namespace, as the API server does
(`diagnose`, which is pure). If all of them leave room, the condition names the log.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from shoal_operator.brokers.diagnostics import Diagnosis, diagnose_refusal
from shoal_operator.kube.kube import KubeClient, KubeError
from shoal_operator.model.consumers import spark
from shoal_operator.model.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shoal_operator.model.names import Manifest

#: How long executors may be missing until that is a problem: a driver needs some seconds to learn
#: another number, and to request it.
MISSING_SECONDS_MAX = 15.0
#: Spark's defaults of what it adds to the memory of an executor for a job in Python.
_OVERHEAD_MIN, _OVERHEAD_FACTOR = "384m", "0.4"
_SPARK_SIZE = re.compile(r"(\d+)([kmgtp]?)b?$", re.IGNORECASE)
#: Scopes of a ResourceQuota in which an executor is; with others, a quota may not be about it.
_OWN_SCOPES = {"NotTerminating", "NotBestEffort"}
#: What the API server refuses to count for a pod that does not state it.
_MUST_BE_STATED = {
    f"{kind}.{name}" for kind in ("requests", "limits") for name in ("cpu", "memory")
}


async def explain(
    kube: KubeClient, namespace: str, driver: str, needs: Mapping[str, Fraction], missing: int
) -> Diagnosis:
    """Return why `missing` executors, of which each has these `needs`, have no pods.

    `driver` is the name of the driver's pod. Raises `KubeError`.
    """
    quotas, ranges = [
        await _list(kube, kind, namespace) for kind in ("ResourceQuota", "LimitRange")
    ]
    if diagnosis := diagnose(quotas, ranges, needs):
        return diagnosis
    text = f"No pod of {missing} executors exists, and no ResourceQuota or LimitRange tells why. "
    text += f"Read what the API server answered the driver: kubectl logs {driver}."
    return Diagnosis("ExecutorsMissing", text)


async def _list(kube: KubeClient, kind: str, namespace: str) -> Sequence[Manifest]:
    try:
        return (await kube.list_snapshot("v1", kind, namespace, {}))[0]
    except KubeError as error:
        if error.status != 403:
            raise
        # Roles of an earlier release of the chart do not allow it.
        return []


def diagnose(
    quotas: Sequence[Mapping[str, Any]],
    ranges: Sequence[Mapping[str, Any]],
    needs: Mapping[str, Fraction],
) -> Diagnosis | None:
    """Return which ResourceQuota or LimitRange an executor with these needs exceeds, None if each
    has room for one more."""
    for quota in quotas:
        for text in _list_excesses(quota, needs):
            return diagnose_refusal("ResourceQuota", quota["metadata"]["name"], text)
    for limits in ranges:
        for text in _list_violations(limits, needs):
            return diagnose_refusal("LimitRange", limits["metadata"]["name"], text)
    return None


def _list_excesses(quota: Mapping[str, Any], needs: Mapping[str, Fraction]) -> Iterator[str]:
    spec, status = quota.get("spec", {}), quota.get("status", {})
    if not _OWN_SCOPES.issuperset(spec.get("scopes", ())) or "scopeSelector" in spec:
        return
    for resource, hard in status.get("hard", {}).items():
        used = status.get("used", {}).get(resource, "0")
        plain = f"requests.{resource}" if resource in ("cpu", "memory") else resource
        need = needs.get(plain)
        if need is None and plain in _MUST_BE_STATED:
            yield f"the pods of executors must specify {resource}"
        elif need and parse_quantity(used) + need > parse_quantity(hard):
            asked = _format_quantity(resource, need)
            yield (
                f"exceeded quota by another executor, which needs {resource}={asked}: "
                f"{used} of {hard} are used"
            )


def _list_violations(limits: Mapping[str, Any], needs: Mapping[str, Fraction]) -> Iterator[str]:
    for limit in limits.get("spec", {}).get("limits", ()):
        scope = limit.get("type")
        if scope not in ("Container", "Pod"):
            continue
        for word, bounds in (("maximum", limit.get("max", {})), ("minimum", limit.get("min", {}))):
            for resource, bound in bounds.items():
                need = needs.get(f"limits.{resource}", needs.get(f"requests.{resource}"))
                if need is None or need == parse_quantity(bound):
                    continue
                if (need > parse_quantity(bound)) == (word == "maximum"):
                    asked = _format_quantity(resource, need)
                    yield (
                        f"{word} {resource} usage per {scope} is {bound}, but an executor has "
                        f"{asked}"
                    )


def compute_needs(
    application: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]
) -> dict[str, Fraction]:
    """Return what an executor asks for, by the names of ResourceQuotas: `pods`, `requests.cpu`.

    The pods of executors say it. Without one, it follows from the SparkApplication, which has the
    form of Kubeflow's.
    """
    needs = {"pods": Fraction(1), "count/pods": Fraction(1)}
    containers = pods[0]["spec"].get("containers", []) if pods else [_build_container(application)]
    for container in containers:
        resources = container.get("resources", {})
        requests = {**resources.get("limits", {}), **resources.get("requests", {})}
        for kind, amounts in (("requests", requests), ("limits", resources.get("limits", {}))):
            for resource, amount in amounts.items():
                key = f"{kind}.{resource}"
                needs[key] = needs.get(key, Fraction(0)) + parse_quantity(str(amount))
    return needs


def _build_container(application: Mapping[str, Any]) -> Manifest:
    """Return the container of an executor as Spark builds it, as far as its resources go."""
    conf, executor = application.get("sparkConf", {}), application["executor"]

    def get(field: str, key: str, default: str) -> str:
        return str(executor.get(field) or conf.get(f"spark.executor.{key}") or default)

    memory_mib = _parse_spark_mib(get("memory", "memory", spark.MEMORY))
    kubernetes_factor = conf.get("spark.kubernetes.memoryOverheadFactor", _OVERHEAD_FACTOR)
    factor = Fraction(str(conf.get("spark.executor.memoryOverheadFactor", kubernetes_factor)))
    least_mib = _parse_spark_mib(str(conf.get("spark.executor.minMemoryOverhead", _OVERHEAD_MIN)))
    overhead = get("memoryOverhead", "memoryOverhead", "")
    memory_mib += (
        _parse_spark_mib(overhead) if overhead else max(int(memory_mib * factor), least_mib)
    )
    memory_mib += _parse_spark_mib(str(conf.get("spark.executor.pyspark.memory", "0")))
    memory = f"{memory_mib}Mi"
    template = executor.get("template", {}).get("spec", {}).get("containers", [])
    of_template: Manifest = next(
        (entry for entry in template if entry["name"] == spark.CONTAINERS["executor"]), {}
    )
    # Such as GPUs; Spark sets CPU and memory itself.
    limits = dict(of_template.get("resources", {}).get("limits", {}))
    limits["memory"] = memory
    limits.pop("cpu", None)
    if executor.get("coreLimit"):
        limits["cpu"] = executor["coreLimit"]
    cpu = str(executor.get("coreRequest") or executor["cores"])
    return {"resources": {"limits": limits, "requests": {"cpu": cpu, "memory": memory}}}


def _parse_spark_mib(text: str) -> int:
    """Return `1g` or `512m` in MiB, which it is without a unit; 0 if Spark does not understand
    it."""
    match = _SPARK_SIZE.match(text)
    if not match:
        return 0
    return int(match[1]) << (10 * "kmgtp".index(match[2].lower() or "m")) >> 10


def _format_quantity(resource: str, amount: Fraction) -> str:
    if "memory" in resource or "storage" in resource:
        return f"{int(amount) >> 20}Mi"
    return str(amount.numerator) if amount.denominator == 1 else f"{int(amount * 1000)}m"

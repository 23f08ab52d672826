"""What the templates of Spark's pods cannot have, because Spark or the operator sets it. Pure.

The rest of a template goes into the SparkApplication as it is: extended resources such as GPUs,
priority, affinity, tolerations, volumes, further containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal_operator.model import names, users
from shoal_operator.model.consumers import spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal_operator.model.resources.share_consumer import ShareConsumer

#: Fields of the pod, and what to use instead.
_OF_POD = {
    "restartPolicy": "Spark sets it. Remove it.",
    "serviceAccountName": "Use spec.spark.serviceAccountName.",
    "serviceAccount": "Use spec.spark.serviceAccountName.",
    "hostname": "Spark sets it. Remove it.",
}
#: Fields of Spark's container.
_OF_CONTAINER = {
    "image": "Use spec.spark.image.",
    "imagePullPolicy": "Use spec.spark.imagePullPolicy.",
    "command": "Spark sets it. Remove it.",
    "args": "Spark sets it. Remove it.",
}
#: Resources of Spark's container.
_RESOURCES = {
    "cpu": "Use coreRequest and coreLimit beside the template.",
    "memory": "Use memory and memoryOverhead beside the template.",
}
_VOLUMES = (
    spark.CHECKPOINT_VOLUME,
    spark.SCALE_VOLUME,
    names.POD_VOLUME,
    users.make_mounted_secret("").volume["name"],
)


def find_problem(consumer: ShareConsumer) -> str:
    """Return which field the templates of `spec.spark` cannot have, and the remedy; empty if there
    is none."""
    spark_spec = consumer["spec"].get("spark", {})
    problems = (
        f"{path} is not allowed: {remedy}"
        for role in spark.CONTAINERS
        for path, remedy in _find_all(role, spark_spec.get(role, {}).get("template", {}))
    )
    return next(problems, "")


def _find_all(role: spark.Role, template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    pod, path = template.get("spec", {}), f"spec.spark.{role}.template.spec"
    for field in _OF_POD.keys() & pod.keys():
        yield f"{path}.{field}", _OF_POD[field]
    for volume in pod.get("volumes", []):
        if volume.get("name") in _VOLUMES:
            yield (
                f"{path}.volumes {volume['name']}",
                "The operator has one of this name. Rename it.",
            )
    for container in pod.get("containers", []):
        if container["name"] != spark.CONTAINERS[role]:
            continue
        of_container = f"{path}.containers {container['name']}"
        for field in _OF_CONTAINER.keys() & container.keys():
            yield f"{of_container}, {field}", _OF_CONTAINER[field]
        for kind, amounts in container.get("resources", {}).items():
            for name in _RESOURCES.keys() & amounts if kind != "claims" else ():
                yield f"{of_container}, resources.{kind}.{name}", _RESOURCES[name]

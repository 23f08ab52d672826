"""Deployments of other projects on the test cluster, in images that contain a program alone."""

from __future__ import annotations

from typing import Any

_PROBES = ("livenessProbe", "readinessProbe")


def use_program(deployment: dict[str, Any], image: str) -> None:
    """Let a Deployment run an image of `images.program_archive`. There is no user in it, so the pod
    names one. It requests nothing, and its probes do not wait."""
    pod = deployment["spec"]["template"]["spec"]
    pod["securityContext"]["runAsUser"] = 65534
    (container,) = pod["containers"]
    container["image"], container["imagePullPolicy"] = image, "Never"
    container["resources"] = {}
    for probe in _PROBES:
        container[probe] |= {"initialDelaySeconds": 1, "periodSeconds": 2}

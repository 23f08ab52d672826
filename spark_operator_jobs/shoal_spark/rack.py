"""The rack of this executor, from the annotations of its pod.

The operator writes the annotation once the pod has a node (docs/operator/clusters.md), and the
kubelet then updates the file. Until then, and outside of Kubernetes, an executor has no rack.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

#: The variable that names the file with the annotations, and the annotation.
VARIABLE, ANNOTATION = "SHOAL_POD_ANNOTATIONS", "shoal.dev/rack"


def read_pod_rack() -> str:
    """Return the rack; empty while it is unknown."""
    file = os.environ.get(VARIABLE)
    if not file:
        return ""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, quoted = line.partition("=")
        if name == ANNOTATION:
            return str(json.loads(quoted))
    return ""

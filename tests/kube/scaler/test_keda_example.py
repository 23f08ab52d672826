"""The manifests in `examples/keda` fit their schemas, and each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from e2e.cluster.programs import module_directory
from kube.structural import errors

ROOT = Path(__file__).parents[3]
CONSUMER, SCALED = (
    yaml.safe_load(path.read_text()) for path in sorted((ROOT / "examples/keda").glob("*.yaml"))
)
KEDA = "github.com/kedacore/keda/v2"


def test_the_consumer_leaves_its_number_to_keda() -> None:
    assert errors(CONSUMER) == []
    # Without the field, the subresource `scale` does not exist.
    assert CONSUMER["spec"]["replicas"] == 0
    assert "scaling" not in CONSUMER["spec"]
    target = SCALED["spec"]["scaleTargetRef"]
    assert target == {
        "apiVersion": CONSUMER["apiVersion"],
        "kind": CONSUMER["kind"],
        "name": CONSUMER["metadata"]["name"],
    }
    # The trigger names no ShareConsumer, so it is that of the same name.
    assert SCALED["metadata"]["name"] == CONSUMER["metadata"]["name"]


@pytest.mark.nightly
def test_the_scaled_object_fits_kedas_schema() -> None:
    """It downloads KEDA's module."""
    definitions = module_directory("keda", KEDA) / "config/crd/bases"
    assert errors(SCALED, definitions) == []
    wrong = {**SCALED, "spec": {**SCALED["spec"], "minReplicas": 0}}
    assert errors(wrong, definitions) == ["spec.minReplicas: the schema has no such field"]

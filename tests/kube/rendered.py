"""The clusters whose Kubernetes objects `rendered.json` contains, from before a pod could have
several brokers: `test_pod_layout.py` compares."""

from __future__ import annotations

from typing import Any

from shoal_operator.model import cluster, listeners


def _cluster(**spec: Any) -> Any:
    return {
        "kind": "QueueCluster",
        "metadata": {"name": "main", "namespace": "n", "uid": "u"},
        "spec": {
            "replicas": 1,
            "storage": {"size": "1Gi"},
            "listeners": [{"name": "plain", "port": 9092, "type": "Internal"}],
            "metrics": {"enabled": True, "port": 9404},
            **spec,
        },
    }


def clusters() -> dict[str, Any]:
    """Return clusters by name: a minimal one, and one with every field."""
    whole = _cluster(
        replicas=4,
        image="mine:1",
        storage={"size": "2Gi", "storageClassName": "fast", "deletionPolicy": "Delete"},
        resources={"requests": {"cpu": "1", "memory": "256Mi"}},
        config={"num.partitions": "3", "log.retention.ms": "5"},
        rack={"topologyKey": "topology.kubernetes.io/zone"},
        listeners=[
            {"name": "plain", "port": 9092, "type": "Internal"},
            {"name": "outside", "port": 9094, "type": "NodePort"},
            {"name": "world", "port": 9095, "type": "LoadBalancer"},
        ],
        networkPolicy={"enabled": True, "from": [{"podSelector": {}}]},
        template={
            "pod": {"annotations": {"a": "b"}, "terminationGracePeriodSeconds": 90},
            "service": {"labels": {"c": "d"}},
        },
    )
    whole["status"] = {"quorumVoters": [0, 1, 2], "clusterId": "known"}
    return {"least": _cluster(), "whole": whole}


def services(resource: Any) -> listeners.Services:
    """Return those Services as an API server would, with ports and addresses."""
    have = {}
    for number, (name, spec, _) in enumerate(listeners.build_services(resource)):
        ports = [{**port, "nodePort": 31000 + number} for port in spec["ports"]]
        ingress = [{"ip": f"192.0.2.{number}"}]
        have[name] = {
            "metadata": {"name": name},
            "spec": {**spec, "ports": ports},
            "status": {"loadBalancer": {"ingress": ingress}},
        }
    return have


def rendered(resource: Any) -> list[dict[str, Any]]:
    return cluster.build_manifests(resource, "shoal/broker:1", services(resource))

"""The certificates that brokers report in their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.monitoring.exposition import parse_samples

from shoal_operator.model import security
from shoal_operator.model.ca_renewal import LoadedCertificates

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

OWN = "shoal_listener_certificate_info"
TRUSTED = "shoal_listener_trusted_certificate_info"
#: The listeners whose clients have certificates of the cluster's authority.
_INTERNAL = frozenset(
    {security.REPLICATION, security.CONTROLLER, security.CONTROLLER_TLS, security.METRICS}
)


def parse_certificates(
    pages: Mapping[int, str], excluded_listeners: Container[str] = ()
) -> dict[str, dict[int, LoadedCertificates]]:
    """Return fingerprints by kind of authority and broker, from the texts of `/metrics`.

    A certificate counts if all listeners of the kind have it, but for `excluded_listeners`, which
    show certificates of users. A node without a listener of a kind, such as a dedicated controller,
    is left out. Raises `ValueError` for text that is not in Prometheus' format.
    """
    loaded_by_kind: dict[str, dict[int, LoadedCertificates]] = {kind: {} for kind in security.KINDS}
    for broker, page in pages.items():
        own: dict[str, set[str]] = {}
        trusted: dict[str, set[str]] = {}
        for sample in parse_samples(page, [OWN, TRUSTED]):
            into = own if sample.name == OWN else trusted
            into.setdefault(sample.labels["listener"].lower(), set()).add(
                sample.labels["fingerprint"]
            )
        for kind in security.KINDS:
            mine = [n for n in own if (n in _INTERNAL) == (kind == security.CLUSTER)]
            if own and not mine:
                continue
            loaded_by_kind[kind][broker] = LoadedCertificates(
                _intersect([own[n] for n in own if n not in excluded_listeners]),
                _intersect([trusted.get(n, set()) for n in mine]),
            )
    return loaded_by_kind


def _intersect(sets: list[set[str]]) -> frozenset[str]:
    return frozenset.intersection(*map(frozenset, sets)) if sets else frozenset()

"""The certificates that brokers report in their metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.client.exposition import samples

from shoal_operator.ca_renewal import Loaded
from shoal_operator.model import security

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

OWN = "shoal_listener_certificate_info"
TRUSTED = "shoal_listener_trusted_certificate_info"
#: The listeners whose clients have certificates of the cluster's authority.
_INTERNAL = frozenset(
    {security.REPLICATION, security.CONTROLLER, security.CONTROLLER_TLS, security.METRICS}
)


def parse_certificates(
    pages: Mapping[int, str], others: Container[str] = ()
) -> dict[str, dict[int, Loaded]]:
    """Return fingerprints by kind of authority and broker, from the texts of `/metrics`.

    A certificate counts if all listeners of the kind have it, but for `others`, which show
    certificates of users. A node without a listener of a kind, such as a dedicated controller, is
    left out. Raises `ValueError` for text that is not in Prometheus' format.
    """
    found: dict[str, dict[int, Loaded]] = {kind: {} for kind in security.KINDS}
    for broker, page in pages.items():
        own: dict[str, set[str]] = {}
        trusted: dict[str, set[str]] = {}
        for sample in samples(page, [OWN, TRUSTED]):
            into = own if sample.name == OWN else trusted
            into.setdefault(sample.labels["listener"].lower(), set()).add(
                sample.labels["fingerprint"]
            )
        for kind in security.KINDS:
            mine = [n for n in own if (n in _INTERNAL) == (kind == security.CLUSTER)]
            if own and not mine:
                continue
            found[kind][broker] = Loaded(
                _common([own[n] for n in own if n not in others]),
                _common([trusted.get(n, set()) for n in mine]),
            )
    return found


def _common(sets: list[set[str]]) -> frozenset[str]:
    return frozenset.intersection(*map(frozenset, sets)) if sets else frozenset()

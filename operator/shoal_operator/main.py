"""What kopf runs: watches in, `Operator` out. `python -m shoal_operator` starts it.

kopf brings the watch streams, the liveness probe and the life cycle. Only event handlers are used:
they store what they see and wake a loop, write nothing to the objects and leave no annotations.

Environment: SHOAL_OPERATOR_NAMESPACE (where the Lease lives), SHOAL_BROKER_IMAGE,
SHOAL_SPARK_IMAGE, SHOAL_DRIVER_ROLE (the ClusterRole of Spark drivers), SHOAL_SCALE_URL (how
drivers reach this operator), SHOAL_HTTP_PORT (metrics and scale signals, 8080) and POD_NAME
(identity in the election).
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from typing import Any

import kopf
import structlog
from lightkube.config.kubeconfig import SingleConfig

from shoal_operator import __version__, endpoint
from shoal_operator.election import Election
from shoal_operator.kube import PLURALS, Kube
from shoal_operator.model import names
from shoal_operator.runtime import SPARK_CRD, WATCHED, Operator
from shoal_operator.settings import Settings

log = structlog.get_logger()
#: A watch that the API server turns away, as it does while a definition changes, soon comes again.
API_BACKOFFS_SECONDS = (0.5, *[1.0] * 20, *[5.0] * 10)


@dataclass(slots=True)
class Environment:
    """What `__main__` hands over, and what the start makes of it."""

    config: SingleConfig
    namespaces: tuple[str, ...] = ()
    operator: Operator = field(init=False)
    close: Any = field(init=False)


def _settings() -> Settings:
    given = os.environ.get
    return Settings(
        broker_image=given("SHOAL_BROKER_IMAGE", f"localhost/shoal/broker:{__version__}"),
        spark_image=given("SHOAL_SPARK_IMAGE", f"localhost/shoal/spark:{__version__}"),
        driver_role=given("SHOAL_DRIVER_ROLE", "shoal-spark-driver"),
        scale_url=given("SHOAL_SCALE_URL", f"http://{socket.gethostname()}:8080"),
        broker_pull_policy=given("SHOAL_BROKER_PULL_POLICY", "IfNotPresent"),
        spark_pull_policy=given("SHOAL_SPARK_PULL_POLICY", "IfNotPresent"),
    )


@kopf.on.startup()
async def start(memo: Environment, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Connect, serve metrics and begin to seek the Lease."""
    settings.posting.enabled = False
    # All kinds were there when the process began (see `__main__`).
    settings.scanning.disabled = True
    settings.networking.error_backoffs = API_BACKOFFS_SECONDS
    made = _settings()
    kube = Kube(memo.config)
    memo.operator = Operator(kube, made, memo.namespaces)
    web = await endpoint.serve(memo.operator, int(os.environ.get("SHOAL_HTTP_PORT", "8080")))
    namespace = os.environ.get("SHOAL_OPERATOR_NAMESPACE", "default")
    identity = os.environ.get("POD_NAME", socket.gethostname())
    election = Election(kube, names.FIELD_MANAGER, namespace, identity, memo.operator.lead)
    memo.operator.stands_by = lambda: election.another_leads
    campaign = asyncio.create_task(election.run(), name="election")

    async def close() -> None:
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        await memo.operator.close()
        await web.cleanup()
        await kube.close()

    memo.close = close
    log.info("started", version=__version__, broker_image=made.broker_image, identity=identity)


@kopf.on.cleanup()
async def stop(memo: Environment, **_: Any) -> None:
    """Give the Lease back and close everything."""
    await memo.close()


async def watch(event: Any, memo: Environment, **_: Any) -> None:
    """Something that concerns us was made, changed or deleted."""
    manifest = dict(event["object"])
    if event["type"] == "DELETED":
        memo.operator.gone(manifest)
    else:
        memo.operator.seen(manifest)


for _api_version, _kind, _labels in WATCHED:
    _group, _, _version = _api_version.rpartition("/")
    kopf.on.event(_group, _version, PLURALS[_kind], labels=_labels or None, id=f"watch-{_kind}")(
        watch
    )


@kopf.on.event(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    field="metadata.name",
    value=SPARK_CRD,
)
async def watch_definitions(memo: Environment, **_: Any) -> None:
    """A Spark operator was installed, or taken away."""
    memo.operator.spark_changed()

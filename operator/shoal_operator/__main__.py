"""`python -m shoal_operator`: check the access to the API server, then run the operator.

A wrong set-up (no kubeconfig, no API server, no rights, a bad certificate of the HTTP server) ends
the process with exit code 1 and one line on standard error before any watch starts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import kopf
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError, LoadResourceError

from shoal_operator import logs
from shoal_operator.http_access import BadAccess, HttpAccess
from shoal_operator.kube.http_client import HttpKubeClient
from shoal_operator.kube.kube import KubeError
from shoal_operator.main import OperatorEnvironment, register
from shoal_operator.model import names
from shoal_operator.runtime import CUSTOM
from shoal_operator.settings import LISTENER_TYPES, RACKS, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Time limit for the API server to answer; on a node that boots, it may start after the operator.
REACH_SECONDS_MAX = 30.0
RETRY_SECONDS = 1.0
#: The API group of SecurityContextConstraints.
OPENSHIFT_GROUP = "security.openshift.io"


def list_namespaces(arguments: Iterable[str]) -> list[str]:
    """Return the namespaces of the arguments, none for all namespaces."""
    return list(dict.fromkeys(name for text in arguments for name in text.split(",") if name))


def main() -> None:
    """Run the operator with the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="shoal_operator", description=__doc__)
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--all-namespaces", action="store_true", help="watch all namespaces")
    scope.add_argument(
        "--namespace",
        action="append",
        default=[],
        metavar="NAMES",
        help="watch this namespace, or several with commas; repeatable; empty: all namespaces, as "
        "the Operator Lifecycle Manager has it",
    )
    parser.add_argument("--liveness", help="URL to serve the liveness probe at")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING"))
    parser.add_argument(
        "--openshift",
        default="auto",
        choices=("auto", "enabled", "disabled"),
        help="whether the platform assigns user, group and seccomp profile to pods; auto asks the "
        "API server for OpenShift's SecurityContextConstraints",
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=(*WORKLOADS, RACKS, *LISTENER_TYPES),
        help="refuse ShareConsumers with this workload, or QueueClusters with racks or with "
        "listeners of this type; the operator then does not need the permissions for it; "
        "repeatable",
    )
    options = parser.parse_args()
    namespaces = list_namespaces(options.namespace)
    logs.configure(options.log_level)
    config = _load_config()
    try:
        http_access = HttpAccess.from_environment(os.environ)
    except BadAccess as error:
        _fail(str(error))
    workloads = frozenset(WORKLOADS) - set(options.without)
    register(workloads)
    is_openshift = asyncio.run(_reach(config))
    kopf.run(
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        liveness_endpoint=options.liveness,
        memo=OperatorEnvironment(
            config,
            tuple(namespaces),
            http_access,
            openshift=is_openshift
            if options.openshift == "auto"
            else options.openshift == "enabled",
            workloads=workloads,
            racks=RACKS not in options.without,
            routed=frozenset(
                kind for name, kind in LISTENER_TYPES.items() if name not in options.without
            ),
        ),
    )


def _load_config() -> SingleConfig:
    """Return the connection to the API server: that of the pod, or of a kubeconfig."""
    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        config = KubeConfig.from_env().get()
    except (ConfigError, LoadResourceError, OSError, yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"it lacks {error}"
        _fail(
            f"no usable kubeconfig: {reason}. Outside Kubernetes, set KUBECONFIG to a file that "
            f"kubectl can use. It is {file} now."
        )
    if config is None or config.user is None:
        _fail(f"the kubeconfig {file} has no current context with a cluster and a user.")
    return config


async def _reach(config: SingleConfig) -> bool:
    """Wait until the API server serves the project's kinds; exit if it refuses the requests.

    Return whether the API server is one of OpenShift.

    kopf scans for kinds at its start only: after a later scan, it would stop watching a kind that
    is absent for a moment while its definition changes.
    """
    kube = HttpKubeClient(config)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REACH_SECONDS_MAX
    server = config.cluster.server
    try:
        while True:
            try:
                missing = await kube.find_missing_kinds(CUSTOM)
                if not missing:
                    return await kube.has_group(OPENSHIFT_GROUP)
                if loop.time() > deadline:
                    _fail(
                        f"the API server {server} does not serve {', '.join(missing)} of "
                        f"{names.API_VERSION}. Apply the definitions in the chart's folder crds/."
                    )
            except KubeError as error:
                if error.status in (401, 403):
                    _fail(
                        f"the API server {server} refused a request: {error} (HTTP {error.status})."
                    )
                if loop.time() > deadline:
                    _fail(f"{server}: {error}. Check the address and that the API server runs.")
            await asyncio.sleep(RETRY_SECONDS)
    finally:
        await kube.close()


def _fail(sentence: str) -> NoReturn:
    print(f"shoal operator: {sentence}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    main()

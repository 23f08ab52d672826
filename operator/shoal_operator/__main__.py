"""`python -m shoal_operator`: see that the API server can be used, then run until told to stop.

A mistake in the set-up (no kubeconfig, no such API server, no rights) ends the process with one
sentence on standard error and status 1, before anything is watched.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from typing import NoReturn

import kopf
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError, LoadResourceError

from shoal_operator import logs
from shoal_operator.kube import Kube, KubeError
from shoal_operator.main import Environment
from shoal_operator.model import names
from shoal_operator.runtime import CUSTOM

#: How long an API server that does not answer is waited for; a node that boots starts us early.
REACH_SECONDS_MAX = 30.0
RETRY_SECONDS = 1.0


def main() -> None:
    """Run the operator; the command line says what it watches."""
    parser = argparse.ArgumentParser(prog="shoal_operator", description=__doc__)
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--all-namespaces", action="store_true", help="watch all namespaces")
    scope.add_argument("--namespace", action="append", default=[], help="watch it; may be repeated")
    parser.add_argument("--liveness", help="URL to serve the liveness probe at")
    parser.add_argument("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING"))
    options = parser.parse_args()
    logs.configure(options.log_level)
    config = _config()
    asyncio.run(_reach(config))
    kopf.run(
        standalone=True,
        clusterwide=options.all_namespaces,
        namespaces=options.namespace,
        liveness_endpoint=options.liveness,
        memo=Environment(config, tuple(options.namespace)),
    )


def _config() -> SingleConfig:
    """How the API server is reached: from inside of a pod, or by a kubeconfig."""
    file = os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        config = KubeConfig.from_env().get()
    except (ConfigError, LoadResourceError, OSError, yaml.YAMLError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            reason = f"it has no {error}"
        _fail(
            f"no usable kubeconfig: {reason}. Outside of Kubernetes, point KUBECONFIG to a file "
            f"that kubectl can use; it is {file} now."
        )
    if config is None or config.user is None:
        _fail(f"the kubeconfig {file} has no current context with a cluster and a user.")
    return config


async def _reach(config: SingleConfig) -> None:
    """Wait until the API server answers and serves our kinds; one that refuses us ends the
    process.

    kopf looks for kinds when it starts, and a kind that a definition's change hides for a moment
    would never be watched again; so it starts when all are there and does not look later.
    """
    kube = Kube(config)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REACH_SECONDS_MAX
    server = config.cluster.server
    try:
        while True:
            try:
                missing = await kube.missing_kinds(CUSTOM)
                if not missing:
                    return
                if loop.time() > deadline:
                    _fail(
                        f"the API server {server} has no {', '.join(missing)} of "
                        f"{names.API_VERSION}: apply the definitions that the chart has in crds/."
                    )
            except KubeError as error:
                if error.status in (401, 403):
                    _fail(f"the API server {server} refuses: {error} (HTTP {error.status}).")
                if loop.time() > deadline:
                    _fail(f"{server}: {error}. Is it the right address, and does it run?")
            await asyncio.sleep(RETRY_SECONDS)
    finally:
        await kube.close()


def _fail(sentence: str) -> NoReturn:
    print(f"shoal operator: {sentence}", file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    main()

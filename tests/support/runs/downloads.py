"""Fetches and builds what tests take from other projects (`make java`), so that no test downloads:
axe-core and kafkajs from npm, promtool and Prometheus from Debian; from Go modules kstatus, Argo
CD's Lua, and what an API server does with custom resources.

`make java` runs it. It names what cannot be had here, whose tests are left out. With CI=true it
fails then.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from e2e.cluster.layout import ClusterError
from e2e.cluster.programs import program
from e2e.promtool import prometheus, promtool
from support.console.browsers import axe_source
from support.runs.npm_packages import find_kafkajs

if TYPE_CHECKING:
    from collections.abc import Callable

DOWNLOADS: dict[str, Callable[[], object]] = {
    "axe-core": axe_source,
    "kafkajs": find_kafkajs,
    "promtool": promtool,
    "prometheus": prometheus,
    "kstatus": lambda: program("kstatus"),
    "argocd-lua": lambda: program("argocd-lua"),
    "custom-resources": lambda: program("custom-resources"),
}


def main() -> int:
    failed = False
    for name, fetch in DOWNLOADS.items():
        try:
            fetch()
        except pytest.skip.Exception as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
        except (pytest.fail.Exception, ClusterError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

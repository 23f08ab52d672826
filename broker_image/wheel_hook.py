"""Compiles the extension modules for `pip install .` and `pip install -e .`, and adds them to a
wheel. The hook of pyproject.toml.

Without a C compiler the package has Python alone, and `python -m shoal.compile` compiles later.
`SHOAL_WHEEL=compiled` refuses that; `SHOAL_WHEEL=pure` never compiles, for a wheel that works on
every platform. With `SHOAL_WHEEL_TAG`, such as `cp312-cp312-linux_aarch64`, and the headers of that
Python in the folder `SHOAL_WHEEL_HEADERS`, the wheel is for another Python than the one that builds
it.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Folders and files that a wheel has at another place than the source tree does.
MOVED = {
    "spark_operator_jobs/jobs": "shoal_spark/jobs",
    "examples/demo/pipeline.yaml": "shoal_spark/demo/pipeline.yaml",
    "crds": "shoal_operator/local/crds",
}


class Wheel(BuildHookInterface):
    """Completes a wheel, or an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises `RuntimeError` if a module cannot be compiled that must be."""
        root = Path(self.root)
        if version != "editable":
            there = {name: into for name, into in MOVED.items() if (root / name).exists()}
            build_data["force_include"].update(there)
        folder = root / "broker_image"
        program = folder / "shoal" / "compile.py"
        wanted = os.environ.get("SHOAL_WHEEL")
        # An image installs the dependencies before it has the sources.
        if wanted == "pure" or not program.exists():
            return
        compiler = runpy.run_path(str(program))
        target, tag = compiler["get_own_target"](), os.environ.get("SHOAL_WHEEL_TAG", "")
        if tag:
            suffix = format_suffix(tag)
            target = compiler["Target"](Path(os.environ["SHOAL_WHEEL_HEADERS"]), suffix)
        for extension in compiler["EXTENSIONS"]:
            refused = compiler["build"](folder, extension, target)
            if refused is None:
                made = compiler["module_path"](folder, extension, target)
                build_data["artifacts"].append(f"/{made.relative_to(root)}")
                build_data["pure_python"], build_data["infer_tag"] = False, not tag
                build_data |= {"tag": tag} if tag else {}
            elif wanted == "compiled":
                raise RuntimeError(f"{extension.name} cannot be compiled: {refused}")
            else:
                self.app.display_warning(f"{extension.name}: left in Python: {refused}.")


def format_suffix(tag: str) -> str:
    """Return how the modules of CPython on Linux end, by the tag of a wheel."""
    python, _, platform = tag.split("-")
    machine = platform.removeprefix("linux_")
    return f".cpython-{python.removeprefix('cp')}-{machine}-linux-gnu.so"

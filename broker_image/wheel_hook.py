"""Compiles the extension modules into a wheel, if `SHOAL_WHEEL=compiled` is set.

Without it a wheel has Python alone, and works on every platform. The hook of pyproject.toml.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledModules(BuildHookInterface):
    """Adds the compiled modules of `broker_image/compile.py` to a wheel for this Python."""

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        """Raises `RuntimeError` if a module cannot be compiled."""
        if self.target_name != "wheel" or os.environ.get("SHOAL_WHEEL") != "compiled":
            return
        folder = Path(self.root) / "broker_image"
        compiler = runpy.run_path(str(folder / "compile.py"))
        for extension in compiler["EXTENSIONS"]:
            refused = compiler["build"](folder, extension)
            if refused is not None:
                raise RuntimeError(f"{extension.name} cannot be compiled: {refused}")
        build_data["artifacts"] += ["broker_image/**/_bulk*.so", "broker_image/**/_walk*.so"]
        build_data["pure_python"] = False
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["tag"] = f"{python}-{python}-linux_x86_64"

"""KEDA's sources without the scalers that no test uses.

Each of KEDA's 80 scalers has a client of its own system, and all are in one package. Compiling the
clients takes most of the time. So the programs are built from a copy of the pinned module that has
the external scalers alone; everything else is KEDA's own, with the versions of its go.mod.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .layout import ClusterError

MODULE = "github.com/kedacore/keda/v2"
#: Triggers that the programs have, and the files with their code in `pkg/scalers`.
TRIGGERS = ("external", "external-push")
SCALERS = ("scaler.go", "external_scaler.go")
#: What those files use of the others.
SHARED = 'package scalers\n\nconst externalMetricType = "External"\n'
_BUILDER = Path("pkg/scaling/scalers_builder.go")
_CASE = re.compile(r'^\tcase "([\w-]+)":\n(?:\t\t.*\n)+', re.MULTILINE)


def copy(module: Path, folder: Path) -> None:
    """Copy the sources of KEDA's module to a new folder, and reduce them there."""
    # The files of Go's module cache cannot be written.
    shutil.copytree(module, folder, copy_function=shutil.copyfile)
    for file in (folder / "pkg/scalers").glob("*.go"):
        if file.name not in SCALERS:
            file.unlink()
    (folder / "pkg/scalers/shared.go").write_text(SHARED)
    builder = folder / _BUILDER
    builder.write_text(without_other_triggers(builder.read_text()))


def without_other_triggers(text: str) -> str:
    """Return the source of the function that makes scalers, with the cases of TRIGGERS."""
    before, start, rest = text.partition("\tswitch triggerType {\n")
    if not start or {*TRIGGERS} - {*_CASE.findall(rest)}:
        raise ClusterError(
            f"{_BUILDER} of KEDA has no cases {', '.join(TRIGGERS)}: adapt {__name__}."
        )
    return before + start + _CASE.sub(lambda one: one[0] if one[1] in TRIGGERS else "", rest)

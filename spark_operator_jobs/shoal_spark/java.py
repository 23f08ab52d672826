"""Whether this machine has the Java that Spark needs. Also a program, for any Python 3.11.

    PYTHONPATH=spark_operator_jobs python3 -m shoal_spark.java

It prints a sentence and exits with 1 if Java is missing. Without it, PySpark ends with a trace that
names no remedy. It imports only the standard library, so that `make demo` asks before it downloads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Spark 4 runs on Java 17 and later.
VERSION_MIN = 17
REMEDY = (
    "Install a Java runtime (on Debian and Ubuntu: apt-get install default-jre-headless), or set "
    "JAVA_HOME."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def find_problem(environment: Mapping[str, str] = os.environ) -> str:
    """Return what is wrong with Java here and the remedy, as one line; empty if nothing."""
    home = environment.get("JAVA_HOME", "")
    path = environment.get("PATH")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java", path=path)
    if java is None and home:
        return (
            f"JAVA_HOME is {home}, which has no bin/java. Set it to Java {VERSION_MIN} or newer, "
            "or unset it."
        )
    if java is None:
        return f"Spark needs Java {VERSION_MIN} or newer, which was not found. {REMEDY}"
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = _VERSION.search(output)
    if version and int(version[1]) < VERSION_MIN:
        return f"Spark needs Java {VERSION_MIN} or newer, and {java} is Java {version[1]}. {REMEDY}"
    return ""


if __name__ == "__main__":
    sys.exit(find_problem())

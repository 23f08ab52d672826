#!/usr/bin/env python3
"""`java` of the Spark image: starts Spark's JVMs from an archive of its classes.

A JVM of Spark spends half of its start on loading and verifying some ten thousand classes from
jars. The image has an archive of their in-memory form (class data sharing: `class_archive`). A JVM
uses the archive only if its class path starts with exactly the archived jars, in their order.
`$SPARK_HOME/jars/*` expands in any order, and comes after the configuration directory. So this
program names the jars in the archive's order and puts the directory after them. No jar of Spark
contains a file of a configuration directory. If a class path has another jar before Spark's, or
other versions of Spark's jars, the JVM starts without the archive.

JAVA_HOME is the directory above this program's, and the real `java` is on the PATH. This module
uses only the standard library.
"""

import os
import sys
from pathlib import Path

#: The archive, and the class path that it was made with.
ARCHIVE, JARS = Path("/opt/spark/classes.jsa"), Path("/opt/spark/classes.path")
#: During the creation of the archive: a directory for the class list of each JVM.
LISTS = "SHOAL_CLASS_LISTS"


def expand_class_path(class_path: str, home: str, archived: list[str]) -> str | None:
    """Return the class path with the archive's jars first; None if that changes its meaning."""
    wildcard, entries = f"{home}/jars/*", [part for part in class_path.split(":") if part]
    if wildcard not in entries:
        return None
    position = entries.index(wildcard)
    before = [part for part in entries[:position] if part not in archived]
    there = [str(path) for path in sorted(Path(home, "jars").glob("*.jar"))]
    if any(part.endswith((".jar", "*")) for part in before) or not set(archived) <= set(there):
        return None
    more = [path for path in there if path not in archived]
    return ":".join([*archived, *more, *before, *entries[position + 1 :]])


def build_command(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """Return the command line of the real program."""
    if lists := environment.get(LISTS):
        return ["java", f"-XX:DumpLoadedClassList={lists}/{os.getpid()}.classes", *arguments]
    flags = [word for word in ("-cp", "-classpath", "--class-path") if word in arguments]
    if not flags or not ARCHIVE.exists():
        return ["java", *arguments]
    position = arguments.index(flags[0]) + 1
    archived = JARS.read_text().split(":")
    class_path = expand_class_path(arguments[position], environment.get("SPARK_HOME", ""), archived)
    if class_path is None:
        return ["java", *arguments]
    # The JVM silently ignores an unusable archive, because scripts read its output.
    options = [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xshare:auto", "-Xlog:cds=off"]
    return ["java", *options, *arguments[:position], class_path, *arguments[position + 1 :]]


if __name__ == "__main__":
    words = build_command(sys.argv[1:], dict(os.environ))
    os.execvp(words[0], words)

#!/usr/bin/env python3
"""`java` of the Spark image: starts Spark's JVMs from an archive of its classes.

A JVM of Spark spends half of its start on reading some ten thousand classes from jars and checking
them. The image has them as the JVM would have them in memory (class data sharing: `class_archive`),
which a JVM takes only if its class path begins with the very jars that the archive was made of, in
their order. `$SPARK_HOME/jars/*` comes in any order, and after the directory of the configuration.
So here the jars are named, in the archive's order, and the directory goes behind them: none of
Spark's jars has a file that stands in a directory of configuration. Where a class path has a jar
of somebody else before Spark's, or Spark's are other ones, the JVM starts without the archive.

JAVA_HOME names the directory above this program's, and the real `java` is on the PATH. Only the
standard library is used.
"""

import os
import sys
from pathlib import Path

#: The archive, and the class path that it was made with.
ARCHIVE, JARS = Path("/opt/spark/classes.jsa"), Path("/opt/spark/classes.path")
#: While the archive is made: a directory into which each JVM writes what it loads.
LISTS = "SHOAL_CLASS_LISTS"


def expanded(class_path: str, home: str, archived: list[str]) -> str | None:
    """The class path that begins with the archive's jars; None if it cannot mean the same."""
    wildcard, entries = f"{home}/jars/*", [part for part in class_path.split(":") if part]
    if wildcard not in entries:
        return None
    at = entries.index(wildcard)
    before = [part for part in entries[:at] if part not in archived]
    there = [str(path) for path in sorted(Path(home, "jars").glob("*.jar"))]
    if any(part.endswith((".jar", "*")) for part in before) or not set(archived) <= set(there):
        return None
    more = [path for path in there if path not in archived]
    return ":".join([*archived, *more, *before, *entries[at + 1 :]])


def command(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """The real program's words."""
    if lists := environment.get(LISTS):
        return ["java", f"-XX:DumpLoadedClassList={lists}/{os.getpid()}.classes", *arguments]
    flags = [word for word in ("-cp", "-classpath", "--class-path") if word in arguments]
    if not flags or not ARCHIVE.exists():
        return ["java", *arguments]
    at = arguments.index(flags[0]) + 1
    archived = JARS.read_text().split(":")
    class_path = expanded(arguments[at], environment.get("SPARK_HOME", ""), archived)
    if class_path is None:
        return ["java", *arguments]
    # What it cannot use it does without, and says nothing: the output is read by scripts.
    options = [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xshare:auto", "-Xlog:cds=off"]
    return ["java", *options, *arguments[:at], class_path, *arguments[at + 1 :]]


if __name__ == "__main__":
    words = command(sys.argv[1:], dict(os.environ))
    os.execvp(words[0], words)

"""How the Spark image starts JVMs: from the archive if the class path is equivalent."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

PROGRAMS = Path(__file__).resolve().parents[3] / "spark_operator_jobs"


def program(name: str) -> ModuleType:
    """A program of the image that is not in a package."""
    spec = importlib.util.spec_from_file_location(f"image_{name}", PROGRAMS / f"{name}.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


java, entrypoint = program("java"), program("entrypoint")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Spark with three jars and their archive."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for name in ("slf4j-api-2", "a", "z"):
        (jars / f"{name}.jar").touch()
    archive, path = tmp_path / "classes.jsa", tmp_path / "classes.path"
    archive.touch()
    path.write_text(f"{jars}/slf4j-api-2.jar:{jars}/a.jar:{jars}/z.jar")
    monkeypatch.setattr(java, "ARCHIVE", archive)
    monkeypatch.setattr(java, "JARS", path)
    return str(tmp_path)


def class_path(home: str, given: str) -> str:
    """Return a JVM's class path without the jars' directory; empty without the archive."""
    words = java.build_command(["-Xmx1g", "-cp", given, "Main", "-cp"], {"SPARK_HOME": home})
    assert words[0] == "java"
    assert words[-2:] == ["Main", "-cp"]
    if f"-XX:SharedArchiveFile={home}/classes.jsa" not in words:
        assert words[1:] == ["-Xmx1g", "-cp", given, "Main", "-cp"]
        return ""
    return words[words.index("-cp") + 1].replace(f"{home}/jars/", "")


def test_an_executor_starts_from_the_archive(home: str) -> None:
    assert class_path(home, f"/opt/spark/conf:{home}/jars/*") == (
        "slf4j-api-2.jar:a.jar:z.jar:/opt/spark/conf"
    )


def test_a_driver_starts_from_the_archive(home: str) -> None:
    """Spark's launcher puts a jar of Spark's before the others, and directories after them."""
    given = f"/opt/spark/conf:{home}/jars/slf4j-api-2.jar:{home}/jars/*:/etc/hadoop"
    assert class_path(home, given) == "slf4j-api-2.jar:a.jar:z.jar:/opt/spark/conf:/etc/hadoop"


def test_a_jar_that_was_added_later_comes_behind(home: str) -> None:
    Path(home, "jars", "b.jar").touch()
    assert class_path(home, f"{home}/jars/*") == "slf4j-api-2.jar:a.jar:z.jar:b.jar"


@pytest.mark.parametrize(
    "given", ["/mine.jar:{}/jars/*", "/mine/*:{}/jars/*", "/mine.jar", "{}/jars/a.jar"]
)
def test_other_jars_come_first_without_the_archive(home: str, given: str) -> None:
    assert class_path(home, given.format(home)) == ""


def test_other_jars_than_the_archives(home: str) -> None:
    Path(home, "jars", "a.jar").rename(Path(home, "jars", "a-2.jar"))
    assert class_path(home, f"{home}/jars/*") == ""


def test_without_an_archive_or_a_class_path_java_is_java(home: str) -> None:
    assert java.build_command(["-version"], {"SPARK_HOME": home}) == ["java", "-version"]
    java.ARCHIVE.unlink()
    assert class_path(home, f"{home}/jars/*") == ""


def test_executors_start_by_the_java_of_the_image() -> None:
    environment = {
        **dict.fromkeys(entrypoint.EXECUTOR_OPTIONS.values(), "x"),
        "SPARK_HOME": "/home",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "JAVA_HOME": "/jvm",
        "SPARK_JAVA_OPT_10": "-Db",
        "SPARK_JAVA_OPT_9": "-Da",
    }
    words = entrypoint.build_command(environment, ["executor"])
    assert words[:5] == ["/jvm/bin/java", "-Da", "-Db", "-Xms512m", "-Xmx512m"]
    assert words[words.index("-cp") + 1] == "/home/conf:/home/jars/*"
    del environment["JAVA_HOME"]
    assert entrypoint.build_command(environment, ["executor"])[0] == "java"


def test_while_the_archive_is_made_classes_are_listed(tmp_path: Path) -> None:
    words = java.build_command(["-version"], {java.LISTS: str(tmp_path)})
    assert words[1].startswith(f"-XX:DumpLoadedClassList={tmp_path}/")
    assert words[2:] == ["-version"]

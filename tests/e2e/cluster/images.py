"""The project's images, built by Docker if its engine answers, otherwise by buildah.

Docker builds on the base image that the Containerfiles name. buildah builds on a base of this
module: a Debian with Python, assembled by mmdebstrap, and wheels that pip downloaded by the locks
of tools/locks. So only package registries are needed. The name of an archive contains a hash of all
its inputs: unchanged images are not built again.

The locks pin what comes from PyPI, and Debian's packages have their mends of this month: the month
is an input, so an archive or a base of an earlier one is not used, and Docker pulls its base.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from .backend import docker_answers
from .commands import lock, run
from .control_plane import PAUSE_IMAGE
from .layout import CACHE, REPOSITORY, SPARK_OPERATOR_VERSION, ClusterError
from .programs import pip, program

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True)
class Debian:
    """A release of Debian with its Python, which the wheels must fit."""

    suite: str
    python_version: str

    @property
    def python_environment(self) -> dict[str, str]:
        """What the markers of locks see there. Other variables are those of this machine."""
        return {
            "python_version": self.python_version,
            "python_full_version": f"{self.python_version}.0",
        }


BOOKWORM = Debian("bookworm", "3.11")
#: The stable Debian, which the base that Docker takes is made of, too; that one has Python 3.14.
TRIXIE = Debian("trixie", "3.13")
BASE_PACKAGES = ("ca-certificates", "procps", "python3", "python3-pip", "tini")
#: Compile the extension modules.
COMPILER_PACKAGES = ("gcc", "libc6-dev", "libpython3-dev")
JAVA_PACKAGES = ("openjdk-17-jre-headless",)
#: A git server for tests.
GIT_PACKAGES = ("git", "python3")
GIT_IMAGE = f"localhost/git:{BOOKWORM.suite}"
#: Apache Kafka, at the version of tests/compat/pom.xml.
KAFKA_IMAGE = "localhost/kafka:pinned"
#: Files that no container reads.
EXCLUDED_PATHS = (
    "/usr/share/doc/*",
    "/usr/share/man/man?/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
)
SPARK_OPERATOR_IMAGE = f"localhost/kubeflow/spark-operator:{SPARK_OPERATOR_VERSION}"
#: How long another process may take between requesting an archive and loading it.
SUPERSEDED_S = 600
#: buildah copies itself into memory and seals the copy. The kernel refuses that while it moves one
#: of its pages. buildah then gives up, and the next attempt has other pages.
SEALING, BUILDAH_ATTEMPTS_MAX = "sealing memfd copy: Device or resource busy", 5
#: The packages that build wheels.
BUILD_LOCK = "tools/locks/build.txt"


@dataclass(frozen=True)
class Image:
    """One of the project's images: its Containerfile, sources, and what pip and apt install."""

    containerfile: str
    sources: tuple[str, ...]
    #: The lock with its dependencies.
    lock: str
    packages: tuple[str, ...] = BASE_PACKAGES
    debian: Debian = TRIXIE
    #: Whether it has extension modules.
    compiles: bool = False
    #: A dependency that PyPI has only as a source archive.
    source_only: str = ""

    @property
    def locks(self) -> tuple[str, str]:
        return BUILD_LOCK, self.lock


#: Inputs of the stage of the Spark image that contains no other code of the project.
SPARK_STAGE = tuple(
    f"spark_operator_jobs/{name}.py" for name in ("entrypoint", "java", "class_archive")
)
IMAGES = {
    "broker": Image(
        "broker_image/Containerfile",
        ("broker_image/shoal",),
        "tools/locks/image-broker.txt",
        compiles=True,
    ),
    "operator": Image(
        "operator/Containerfile",
        ("broker_image/shoal", "operator/shoal_operator"),
        "tools/locks/image-operator.txt",
    ),
    "spark": Image(
        "spark_operator_jobs/Containerfile",
        (
            "broker_image/shoal",
            "spark_operator_jobs/shoal_spark",
            "spark_operator_jobs/jobs",
            *SPARK_STAGE,
            "spark_operator_jobs/decommission.py",
        ),
        "tools/locks/image-spark.txt",
        (*BASE_PACKAGES, *JAVA_PACKAGES),
        debian=BOOKWORM,  # It has the Java of the tests.
        source_only="pyspark",
    ),
}
_STEPS = Path(__file__).parent / "spark-operator" / "Containerfile"
PROJECT = ("pyproject.toml", "README.md", "LICENSE", "broker_image/wheel_hook.py")


def tag(name: str) -> str:
    """Return the name of one of the project's images, tagged with the project's version."""
    return f"localhost/shoal/{name}:{_project()['version']}"


def archive(name: str) -> Path:
    """Return the docker archive of one of the project's images, built now if anything changed."""
    path = find_path(name)
    with lock(path.parent / "build.lock"):
        return path if path.exists() else _build(name, IMAGES[name], path)


def find_path(name: str) -> Path:
    """Return where the archive of one of the project's images is, once it is built."""
    if name not in IMAGES:
        raise ClusterError(f"There is no image {name!r}: the images are {', '.join(IMAGES)}.")
    image = IMAGES[name]
    paths = (image.containerfile, *image.locks, *PROJECT, *image.sources)
    salt = " ".join((image.debian.suite, *image.packages))
    return _archive_path(name, [REPOSITORY / path for path in paths], salt)


def other_broker(version: str) -> tuple[str, Path]:
    """Return name and archive of the broker's image, changed to report another version."""
    name = tag("broker").rpartition(":")[0] + f":{version}"
    same = archive("broker")
    path = _archive_path(f"broker-{version}", [same], "")
    with lock(path.parent / "build.lock"):
        if path.exists():
            return name, path
        _load(same)
        change = f's/^__version__ = .*/__version__ = "{version}"/'
        steps = (
            f"FROM {tag('broker')}\nUSER 0\n"
            f"RUN sed -i '{change}' /opt/shoal/shoal/__init__.py && "
            "python3 -m compileall -q -f /opt/shoal/shoal/__init__.py\nUSER 1000:1000\n"
        )
        if docker_answers():
            run("docker", "build", "--quiet", f"--tag={name}", "-", stdin_text=steps)
        else:
            build = ("build-using-dockerfile", "--isolation=chroot", "--network=host")
            _buildah(*build, f"--tag={name}", "--file=-", str(path.parent), stdin_text=steps)
        return name, _export(path, name)


def _build(name: str, image: Image, path: Path) -> Path:
    _build_stage(image, tag(name))
    return _export(path, tag(name))


def _build_stage(image: Image, name: str, stage: str = "") -> None:
    """Build an image from a Containerfile of the project, up to `stage` if it is given."""
    target = (f"--target={stage}",) if stage else ()
    file = f"--file={REPOSITORY / image.containerfile}"
    if docker_answers():
        version = f"--build-arg=VERSION={_project()['version']}"
        build = ("docker", "build", "--quiet", "--pull", f"--tag={name}")
        run(*build, file, version, *target, REPOSITORY)
        return
    _buildah(
        "build-using-dockerfile",
        "--layers",
        "--isolation=chroot",
        "--network=host",
        f"--build-arg=BASE={_base(image.packages, image.debian)}",
        *_compiler(image),
        f"--build-arg=VERSION={_project()['version']}",
        "--build-arg=PIP_NO_INDEX=1",
        "--build-arg=PIP_FIND_LINKS=/wheels",
        f"--volume={_wheels(image)}:/wheels:ro",
        f"--tag={name}",
        file,
        *target,
        str(REPOSITORY),
    )


def _compiler(image: Image) -> tuple[str, ...]:
    """Return the argument with the base that compiles, for an image that compiles something."""
    if not image.compiles:
        return ()
    packages = (*image.packages, *COMPILER_PACKAGES)
    return (f"--build-arg=COMPILER={_base(packages, image.debian)}",)


def pause_archive() -> Path:
    """Return the image of the process that holds a pod's namespaces; kind's node has its own."""
    return program_archive("pause", PAUSE_IMAGE)


def program_archive(name: str, image: str) -> Path:
    """Return an image that contains only one of the Go programs, which are static binaries."""
    binary = program(name)
    steps = f'FROM scratch\nCOPY {binary.name} /{name}\nENTRYPOINT ["/{name}"]\n'
    return _small_archive(name, image, [binary], steps)


def git_archive() -> Path:
    """Return the image of a git server: git and Python, as the user 1000."""
    steps = f"FROM {_base(GIT_PACKAGES)}\nUSER 1000:1000\n"
    return _small_archive("git", GIT_IMAGE, [], steps)


def kafka_archive(jars: list[Path]) -> Path:
    """Return the image of Apache Kafka: its jars in /opt/kafka beside Java, as the user 1000."""
    base = _base((*BASE_PACKAGES, *JAVA_PACKAGES))
    steps = f"FROM {base}\nCOPY *.jar /opt/kafka/\nUSER 1000:1000\n"
    return _small_archive("kafka", KAFKA_IMAGE, jars, steps)


def _small_archive(name: str, image: str, inputs: list[Path], steps: str) -> Path:
    """Return an image that buildah builds by `steps`, on every machine."""
    path = _archive_path(name, inputs, steps)
    if path.exists():
        return path
    folder = inputs[0].parent if inputs else path.parent
    _buildah("build-using-dockerfile", f"--tag={image}", "--file=-", str(folder), stdin_text=steps)
    partial = path.with_suffix(f".{os.getpid()}")
    _buildah("push", "--quiet", image, f"docker-archive:{partial}:{image}")
    return _keep(path, partial)


def spark_operator_archive() -> Path:
    """Return the image of Kubeflow's Spark operator, on the stage of our Spark image without our
    code."""
    spark = IMAGES["spark"]
    base = f"localhost/shoal/spark-stage:{_project()['version']}"
    binary, path = program("spark-operator"), find_spark_operator_path()
    with lock(path.parent / "build.lock"):
        if path.exists():
            return path
        _build_stage(spark, base, "spark")
        arguments = (
            f"--build-arg=BASE={base}",
            f"--tag={SPARK_OPERATOR_IMAGE}",
            f"--file={_STEPS}",
        )
        if docker_answers():
            run("docker", "build", "--quiet", *arguments, binary.parent)
        else:
            build = ("build-using-dockerfile", "--isolation=chroot", "--network=host")
            _buildah(*build, *arguments, str(binary.parent))
        return _export(path, SPARK_OPERATOR_IMAGE)


def find_spark_operator_path() -> Path:
    """Return where the archive of the Spark operator's image is, once it is built; the program is
    built now if it is missing."""
    spark = IMAGES["spark"]
    stage = (spark.containerfile, *spark.locks, "pyproject.toml", *SPARK_STAGE)
    inputs = [_STEPS, program("spark-operator"), *(REPOSITORY / path for path in stage)]
    return _archive_path("spark-operator", inputs, " ".join(spark.packages))


def base_name(packages: Iterable[str], debian: Debian = BOOKWORM) -> str:
    """Return the name of the base image of this month with these packages."""
    inputs = (debian.suite, *sorted(packages), *EXCLUDED_PATHS, get_month())
    return f"localhost/shoal/base:{hashlib.sha256(' '.join(inputs).encode()).hexdigest()[:16]}"


def _base(packages: Iterable[str], debian: Debian = BOOKWORM) -> str:
    """Return the name of a base image in buildah's store; mmdebstrap makes it if it is missing."""
    override = os.environ.get("SHOAL_IMAGE_BASE")
    if override:
        return override
    name = base_name(packages, debian)
    if _buildah("inspect", "--type=image", name, check=False):
        return name
    root = CACHE / "images" / f"base-{name.rpartition(':')[2]}.partial"
    excluded = [f"--dpkgopt=path-exclude={path}" for path in EXCLUDED_PATHS]
    make = (
        "--quiet",
        "--variant=essential",
        "--format=tar",
        f"--include={','.join(sorted(packages))}",
    )
    steps = f"FROM scratch\nADD {root.name} /\n"
    build = ("build-using-dockerfile", f"--tag={name}", "--file=-", str(root.parent))
    try:
        run("mmdebstrap", *make, *excluded, debian.suite, root)
        _buildah(*build, stdin_text=steps)
    finally:
        root.unlink(missing_ok=True)
    return name


def _wheels(image: Image) -> Path:
    """Return a directory with the wheels of an image's locks, for the base's Python."""
    locks = [REPOSITORY / path for path in image.locks]
    texts = (image.debian.python_version, *(path.read_text() for path in locks))
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
    directory = CACHE / "wheels" / f"{locks[-1].stem.removeprefix('image-')}-{key}"
    if directory.exists():
        return directory
    partial = directory.with_suffix(f".{os.getpid()}")
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 28, 34)]
    fits = ("--implementation=cp", f"--python-version={image.debian.python_version}", *platforms)
    with tempfile.TemporaryDirectory() as scratch:
        # pip asks a source archive for its metadata, which takes what builds it.
        backend = f"{scratch}/build"
        hashed = ("--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:")
        run(*pip(), "install", *hashed, f"--target={backend}", f"--requirement={locks[0]}")
        sources = [f"--no-binary={image.source_only}"] if image.source_only else []
        for path in locks:
            wanted = Path(scratch) / path.name
            wanted.write_text("".join(select_pins(path.read_text(), image.debian)))
            download = ("download", *hashed, *sources, f"--dest={partial}", *fits)
            run(
                *pip(),
                *download,
                "--platform=manylinux2014_x86_64",
                "--no-build-isolation",
                f"--requirement={wanted}",
                env={"PYTHONPATH": backend},
            )
    partial.rename(directory)
    _delete_superseded(directory, "")
    return directory


def select_pins(lock: str, debian: Debian) -> Iterator[str]:
    """Iterate over the pins of a lock that the base's Python needs. pip itself reads markers as the
    Python that it runs in."""
    for pin in filter(None, re.split(r"^(?=\S)", lock, flags=re.MULTILINE)):
        marker = Requirement(pin.partition("\\")[0].strip()).marker
        if marker is None or marker.evaluate(debian.python_environment):
            yield pin


def get_month() -> str:
    """Return the month, which is an input of everything that has Debian's packages. A run that sets
    `IMAGE_MONTH` keeps its images when the month ends."""
    return os.environ.get("IMAGE_MONTH") or time.strftime("%Y-%m", time.gmtime())


def _project() -> dict[str, Any]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["project"]


def _archive_path(name: str, inputs: Iterable[Path], salt: str) -> Path:
    """Return the archive's path; its name has a hash of the content of files and directories."""
    digest = hashlib.sha256(f"{salt}\0{docker_answers()}\0{get_month()}\0".encode())
    for top in inputs:
        if not top.exists():
            raise ClusterError(f"{top.relative_to(REPOSITORY)} is missing: image {name} needs it.")
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and "__pycache__" not in file.parts:
                # Not by its whole path: another checkout of the same tree has the same images.
                where = file.relative_to(top.parent)
                digest.update(f"{where}\0".encode() + file.read_bytes() + b"\0")
    directory = CACHE / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{name}-{digest.hexdigest()[:16]}.tar"


def _export(path: Path, image: str) -> Path:
    """Write an image as a docker archive, which kind, Docker and containerd can all load."""
    partial = path.with_suffix(f".{os.getpid()}")
    if docker_answers():
        run("docker", "save", "--output", partial, image)
    else:
        _buildah("push", "--quiet", image, f"docker-archive:{partial}:{image}")
    return _keep(path, partial)


def _load(path: Path) -> None:
    """Load an archive, so that its name means this image. Another checkout's may have had it."""
    if docker_answers():
        run("docker", "load", "--quiet", "--input", path)
    else:
        _buildah("pull", "--quiet", f"docker-archive:{path}")


def write_oci_layout(name: str, folder: Path) -> None:
    """Write an image of the project, which `archive` has built, as an OCI layout."""
    if not docker_answers():
        _load(archive(name))
        _buildah("push", "--quiet", tag(name), f"oci:{folder}:{tag(name)}")
        return
    with tarfile.open(archive(name)) as saved:
        if "oci-layout" not in saved.getnames():
            raise ClusterError("Docker saves no OCI layouts: use Docker 25 or later.")
        saved.extractall(folder, filter="data")


def _keep(path: Path, partial: Path) -> Path:
    """Move a finished archive to its path, and delete those of earlier inputs."""
    _delete_superseded(path, ".tar")
    return partial.rename(path)


def _delete_superseded(path: Path, suffix: str) -> None:
    """Delete what the cache has beside an archive or a directory for earlier inputs."""
    name = path.name.removesuffix(suffix).rpartition("-")[0]
    for old in path.parent.glob(f"{name}-{'[0-9a-f]' * 16}{suffix}"):
        if old == path or old.stat().st_mtime > time.time() - SUPERSEDED_S:
            continue
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def _buildah(*argv: str, stdin_text: str | None = None, check: bool = True) -> bool:
    """Run buildah with a store in the cache, separate from the machine's; return whether it
    worked."""
    root, scratch = CACHE / "containers", CACHE / "containers-run"
    words = ("buildah", f"--root={root}", f"--runroot={scratch}", *argv)
    for _ in range(BUILDAH_ATTEMPTS_MAX - 1):
        try:
            return run(*words, stdin_text=stdin_text, check=check).returncode == 0
        except ClusterError as error:
            if SEALING not in str(error):
                raise
    return run(*words, stdin_text=stdin_text, check=check).returncode == 0

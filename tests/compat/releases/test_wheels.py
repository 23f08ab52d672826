"""The wheels for other Pythons and machines: what is in them, and that aarch64's work.

Each module takes some seconds to compile, and Debian's CPython for aarch64 is fetched, so the tests
run at night.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from release.wheels import MACHINES, PYTHONS, SUITES, extract_debian
from support.runs.machine import lacking
from support.runs.release_builds import ROOT, VERSION, build

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.nightly
QEMU = "qemu-aarch64-static"
#: The fields of an ELF header: where the machine is, and its values.
MACHINE, OF_MACHINE = slice(18, 20), {"x86_64": b"\x3e\0", "aarch64": b"\xb7\0"}
#: Prints where it runs, and what the modules make of the same drawn bytes.
COMPUTE = """
import platform, random
from shoal.coordinator.share import _share_native
from shoal.record import _record_native

print(platform.machine())
draw = random.Random(1)
for size in range(0, 40_000, 997):
    data = draw.randbytes(size)
    print(_record_native.crc32c(data), _record_native.crc32c_by_table(data))
    print(_record_native.key_hash(data))
    print(_record_native.walk(data, 3, 0, -(2**63), 2**63 - 1, True, 2))
    print(_share_native.ranges(sorted(set(draw.choices(range(99), k=20)))))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    build(folder / "clone", folder / "out", "wheels")
    return folder / "out" / "python"


def find_wheel(wheels: Path, python: Sequence[int], machine: str) -> Path:
    name = "cp" + "".join(map(str, python))
    (found,) = wheels.glob(f"shoal-{VERSION}-{name}-{name}-*manylinux_2_17_{machine}.whl")
    return found


def test_each_other_python_and_machine_has_a_wheel(wheels: Path) -> None:
    wanted = [(p, m) for p in PYTHONS for m in MACHINES if (p, m) != (PYTHONS[0], "x86_64")]
    assert len(list(wheels.glob("*.whl"))) == len(wanted)
    for python, machine in wanted:
        suffix = f".cpython-{python[0]}{python[1]}-{machine}-linux-gnu.so"
        with zipfile.ZipFile(find_wheel(wheels, python, machine)) as wheel:
            modules = [name for name in wheel.namelist() if name.endswith(".so")]
            assert sorted(Path(name).name for name in modules) == [
                f"_share_native{suffix}",
                f"_record_native{suffix}",
            ]
            for name in modules:
                assert wheel.read(name)[MACHINE] == OF_MACHINE[machine], name


@pytest.mark.parametrize("python", sorted(SUITES))
def test_the_modules_of_aarch64_compute_what_this_machines_do(
    wheels: Path, tmp_path: Path, python: tuple[int, int]
) -> None:
    """In Debian's CPython for aarch64, with the processor emulated."""
    if not shutil.which(QEMU):
        lacking(f"{QEMU} is missing: apt-get install qemu-user-static")
    name = f"python{python[0]}.{python[1]}"
    root = extract_debian(python, "arm64", name)
    with zipfile.ZipFile(find_wheel(wheels, python, "aarch64")) as wheel:
        wheel.extractall(tmp_path)
    ours = run([sys.executable], ROOT / "broker_image")
    theirs = run([QEMU, "-L", root, f"{root}/usr/bin/{name}"], tmp_path)
    assert theirs == ours.replace(platform.machine(), "aarch64")


def run(python: list[str | Path], packages: Path) -> str:
    """Return what COMPUTE prints. It needs none of the packages that the project needs."""
    environment = {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*python, "-S", "-c", COMPUTE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

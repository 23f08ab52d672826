"""A pod with a rack starts when its annotations have it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from shoal.server.host import await_rack

if TYPE_CHECKING:
    from pathlib import Path

NAME = "shoal.dev/rack"
OTHERS = 'shoal.dev/rack-topology-key="topology.kubernetes.io/zone"\nother="shoal.dev/rack=x"\n'


def test_it_waits_for_the_annotation(tmp_path: Path) -> None:
    file = tmp_path / "annotations"
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(await_rack.await_rack(file, NAME, timeout_s=60))
    )
    thread.start()
    file.write_text(OTHERS)
    thread.join(0.3)
    assert thread.is_alive()
    # As the kubelet does: a new file, and a link to it.
    (tmp_path / "new").write_text(f'{NAME}="zone-a"\n{OTHERS}')
    (tmp_path / "new").replace(file)
    thread.join(60)
    assert found == [True]


def test_a_node_without_a_rack_delays_nothing(tmp_path: Path) -> None:
    file = tmp_path / "annotations"
    file.write_text(f'{OTHERS}{NAME}=""\n')
    assert await_rack.await_rack(file, NAME, timeout_s=0)


def test_without_an_answer_the_pod_starts_after_a_time(tmp_path: Path) -> None:
    assert not await_rack.await_rack(tmp_path / "absent", NAME, timeout_s=0)
    (tmp_path / "annotations").write_text(OTHERS)
    assert not await_rack.await_rack(tmp_path / "annotations", NAME, timeout_s=0.2)


def test_the_command_of_the_container(tmp_path: Path) -> None:
    file = tmp_path / "annotations"
    file.write_text(f'{NAME}="zone-a"\n')
    command = [sys.executable, "-m", "shoal.server.host.await_rack", str(file), NAME]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("", "")

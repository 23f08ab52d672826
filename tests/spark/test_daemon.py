"""The daemon of Python workers has imported their modules, and is safe to fork."""

from __future__ import annotations

import os
import subprocess
import sys

LOOK = """
import sys
from shoal_spark import daemon
print(daemon.preload(), "pandas" in sys.modules, "pyspark.worker" in sys.modules)
"""
THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def output(program: str, threads: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_it_imports_and_has_one_thread() -> None:
    assert output(LOOK, "1") == "True True True"


def test_it_imports_nothing_where_that_would_start_threads() -> None:
    assert output(LOOK, "2") == "False False False"


def test_another_thread_is_found() -> None:
    assert output(THREAD + LOOK, "1") == "False True True"

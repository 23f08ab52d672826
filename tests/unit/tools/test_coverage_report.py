"""The report of coverage reads changed lines from git, and prints them as ranges."""

from __future__ import annotations

import coverage_report
import pytest

DIFF = """\
diff --git a/x/a.py b/x/a.py
--- a/x/a.py
+++ b/x/a.py
@@ -3 +3,2 @@ def f():
-    old
+    new
+    newer
@@ -9,2 +10,0 @@
-    gone
-    gone
@@ -20 +19 @@
-one
+another
diff --git a/y.py b/y.py
--- /dev/null
+++ b/y.py
@@ -0,0 +1,3 @@
+a
+b
+c
"""


def test_lines_of_a_diff() -> None:
    assert coverage_report.read_hunks(DIFF) == {"x/a.py": {3, 4, 19}, "y.py": {1, 2, 3}}


@pytest.mark.parametrize(
    ("lines", "text"), [([], ""), ([4], "4"), ([5, 3, 4, 9], "3-5, 9"), ([1, 3], "1, 3")]
)
def test_ranges(lines: list[int], text: str) -> None:
    assert coverage_report.format_ranges(lines) == text

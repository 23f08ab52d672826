"""Secrets in options, which Spark must not show in plans, event logs and its UI.

Spark shows the options of a source. It redacts those whose names or values contain words such as
`password`, but not a private key in `kafka.ssl.keystore.key`, for example.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shoal.client.security.security import SECRETS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The configuration of a session with the pattern of names whose options are redacted, in addition
#: to `spark.redaction.regex`.
SETTING = "spark.sql.redaction.options.regex"
PATTERN = f"(?i:^kafka\\.(?:{'|'.join(map(re.escape, sorted(SECRETS)))})$)"


def extend(spark: SparkSession) -> None:
    """Redact the options of this session that set a secret, besides those that it redacts now."""
    now = spark.conf.get(SETTING) or ""
    if PATTERN not in now:
        spark.conf.set(SETTING, f"{now}|{PATTERN}" if now else PATTERN)

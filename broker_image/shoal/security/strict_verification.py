"""What Python 3.13 and later refuse in a certificate that earlier ones accept.

`ssl.create_default_context` verifies as RFC 5280 says since then (VERIFY_X509_STRICT). Shoal uses
it for HTTPS: key sets, OpenID providers, Prometheus and schema registries.
"""

from __future__ import annotations


def find_remedy(error: BaseException) -> str:
    """Return a sentence, after a blank, on what the certificate lacks; else an empty text."""
    if "Missing Authority Key Identifier" not in str(error):
        return ""
    return (
        " Python 3.13 and later refuse a certificate without an Authority Key Identifier: issue it"
        " again with that extension."
    )

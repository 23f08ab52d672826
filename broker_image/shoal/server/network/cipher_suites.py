"""Cipher suites of TLS: Java's names, which Kafka's configs have, and OpenSSL's.

`ssl.SSLContext` cannot choose among the suites of TLS 1.3 before Python 3.15. Until then this
module calls OpenSSL's own function, and checks the result.
"""

from __future__ import annotations

import ctypes
import ssl
import sys

#: The suites of TLS 1.3 have the same names in Java and OpenSSL.
TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_EXCHANGES = {
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "ECDHE_RSA": "ECDHE-RSA-",
    "RSA": "",
}
_CIPHERS = {
    "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
    "AES_256_CBC_SHA384": "AES256-SHA384",
    "AES_256_CBC_SHA256": "AES256-SHA256",
    "AES_128_CBC_SHA256": "AES128-SHA256",
    "AES_256_CBC_SHA": "AES256-SHA",
    "AES_128_CBC_SHA": "AES128-SHA",
}


class UnknownCipherSuite(ValueError):
    """A name that no supported suite has."""


def to_openssl_name(name: str) -> str:
    """Return OpenSSL's name of a suite by Java's name. Raises `UnknownCipherSuite`."""
    if name in TLS_1_3:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if exchange not in _EXCHANGES or cipher not in _CIPHERS:
        raise UnknownCipherSuite(name)
    suite = _EXCHANGES[exchange] + _CIPHERS[cipher]
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(suite)
    except ssl.SSLError:
        raise UnknownCipherSuite(name) from None
    return suite


def restrict(context: ssl.SSLContext, names: tuple[str, ...]) -> None:
    """Allow these suites only, by Java's names, in the order of preference.

    Raises `UnknownCipherSuite`, and `ValueError` if they leave no version of TLS.
    """
    suites = [to_openssl_name(name) for name in names]
    newer = [name for name in suites if name in TLS_1_3]
    older = [name for name in suites if name not in TLS_1_3]
    if older:
        context.set_ciphers(":".join(older))
    elif context.minimum_version is ssl.TLSVersion.TLSv1_2:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not newer:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif tuple(newer) != TLS_1_3:
        _restrict_tls_1_3(context, newer)
    if context.minimum_version > context.maximum_version:
        raise ValueError("no cipher suite is for a version of TLS that is enabled")


def _restrict_tls_1_3(context: ssl.SSLContext, names: list[str]) -> None:
    setter = getattr(context, "set_ciphersuites", None)
    if setter is not None:
        setter(":".join(names))
    elif sys.implementation.name == "cpython":
        # The first field of CPython's context, behind the head of every object, is the pointer to
        # OpenSSL's.
        import _ssl

        library = ctypes.CDLL(_ssl.__file__)
        call = getattr(library, "SSL_CTX_set_ciphersuites", None)
        if call is not None:
            call.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
            own = ctypes.c_void_p.from_address(id(context) + object.__basicsize__)
            call(own, ":".join(names).encode())
    enabled = [cipher["name"] for cipher in context.get_ciphers() if cipher["name"] in TLS_1_3]
    if enabled != names:
        raise ValueError(
            "this build of Python cannot choose among the cipher suites of TLS 1.3: name all of"
            f" {', '.join(TLS_1_3)} or none"
        )

"""Broker configs of TLS. Each may be set for one listener: `listener.name.<listener>.ssl.…`."""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

TLS = parse_table(
    """
# applied: TLS
ssl.keystore.location string - - per-broker
    File with the private key and the certificates of a listener. The broker reads it again when it
    changes.
ssl.keystore.type string JKS - per-broker
    Format of the keystore: PEM or PKCS12. JKS, Kafka's default, stands for files of keytool, which
    are PKCS12 since Java 9. Files in Java's old format are refused.
ssl.keystore.password password - - per-broker
    Password of a PKCS12 keystore.
ssl.keystore.key password - - per-broker
    Private key in PEM (PKCS8), instead of a keystore file.
ssl.keystore.certificate.chain password - - per-broker
    Certificates in PEM, beginning with the one for ssl.keystore.key.
ssl.key.password password - - per-broker
    Password of an encrypted private key in PEM.
ssl.truststore.location string - - per-broker
    File with the certificates of the authorities that issue clients' certificates. The broker reads
    it again when it changes. Connections to other nodes trust the same authorities.
ssl.truststore.type string JKS - per-broker
    Format of the truststore: PEM or PKCS12. See ssl.keystore.type.
ssl.truststore.password password - - per-broker
    Password of a PKCS12 truststore.
ssl.truststore.certificates password - - per-broker
    Certificates of authorities in PEM, instead of a truststore file.
shoal.ssl.crl.location string - - per-broker
    File in PEM with lists of revoked certificates. Clients need a certificate that is not on the
    list of its authority, and each authority of clients needs a list that has not expired. The
    broker reads the file again when it changes, and closes connections of revoked certificates.
shoal.ssl.revoked.subjects list "" @revoked-subjects cluster-wide
    Subjects of certificates that clients may no longer use, as FROM/UNTIL/SUBJECT. If the validity
    of a certificate with this subject begins before FROM, it is refused, and its open connections
    are closed. All such certificates have expired at UNTIL; the entry can then be removed. Times
    are 2026-11-25T21:50:00Z, subjects as in RFC 2253 with %2C for a comma.
ssl.client.auth string none required|requested|none per-broker
    Whether clients must show a certificate (required), or may (requested). A listener with SASL
    takes it only from its own listener.name config.
ssl.principal.mapping.rules string DEFAULT @principal-rules
    Rules that map the subject of a client's certificate to a user name, as RULE:pattern/name/[LU]
    or DEFAULT.
ssl.enabled.protocols list TLSv1.2,TLSv1.3 TLSv1.2|TLSv1.3 per-broker
    Enabled versions of TLS.
ssl.cipher.suites list "" - per-broker
    Enabled cipher suites by their names in Java. If empty, OpenSSL's strong ones.
ssl.endpoint.identification.algorithm string https - per-broker
    Whether the certificates of other nodes must name their hosts: https, or empty.
ssl.allow.dn.changes boolean false -
    Whether a keystore that is set at run time may contain another subject.
ssl.allow.san.changes boolean false -
    Whether a keystore that is set at run time may lack alternative names of the present one.
shoal.ssl.handshake.timeout.ms int 10000 1..
    Time that a client may take for the TLS handshake. In Kafka, only connections.max.idle.ms limits
    it.
shoal.ssl.reload.interval.ms long 10000 1..
    Interval at which the broker looks for changes of keystores, truststores and lists of revoked
    certificates.
"""
)

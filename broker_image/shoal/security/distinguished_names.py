"""Subject names of certificates, as Java's `X500Principal.getName()` writes them (RFC 2253).

Kafka maps these texts to principals (`principal_mapping`), so users' rules and ACLs contain them,
and each character counts. Java writes the relative names from last to first. It knows nine
attribute types by name, and writes others as an OID with the value's DER encoding in hex.

A name is read from the DER encoding of the certificate, because other libraries change it.
`MalformedCertificate` is raised for bytes that are no certificate.
"""

from __future__ import annotations

from typing import NamedTuple

_SEQUENCE, _SET, _OID, _CONTEXT_0 = 0x30, 0x31, 0x06, 0xA0
#: The attribute types that RFC 2253 names.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
#: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString.
_STRINGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED = frozenset(',=+<>#;"\\')


class MalformedCertificate(ValueError):
    """Bytes that are no certificate."""


class _Element(NamedTuple):
    """One element of DER: its tag, where its value begins, and where it ends."""

    tag: int
    begin: int
    end: int


def read_subject(certificate: bytes) -> str:
    """Return the subject of a certificate in DER. Raises `MalformedCertificate`."""
    data = certificate
    outer = _read_element(data, 0, len(data), _SEQUENCE)
    signed = _read_element(data, outer.begin, outer.end, _SEQUENCE)
    fields = _read_elements(data, signed.begin, signed.end)
    if fields and fields[0].tag == _CONTEXT_0:  # the version
        del fields[0]
    # Serial number, signature algorithm, issuer, validity, subject.
    if len(fields) < 5 or fields[4].tag != _SEQUENCE:
        raise MalformedCertificate("the certificate has no subject")
    return _format_name(data, fields[4])


def format_name(name: bytes) -> str:
    """Return the text of a name in DER. Raises `MalformedCertificate`."""
    return _format_name(name, _read_element(name, 0, len(name), _SEQUENCE))


def _format_name(data: bytes, name: _Element) -> str:
    parts = _read_elements(data, name.begin, name.end)
    return ",".join(_format_relative_name(data, part) for part in reversed(parts))


def _format_relative_name(data: bytes, name: _Element) -> str:
    if name.tag != _SET:
        raise MalformedCertificate("a relative name is no set")
    return "+".join(
        _format_attribute(data, element) for element in _read_elements(data, name.begin, name.end)
    )


def _format_attribute(data: bytes, attribute: _Element) -> str:
    parts = _read_elements(data, attribute.begin, attribute.end)
    if attribute.tag != _SEQUENCE or len(parts) != 2 or parts[0].tag != _OID:
        raise MalformedCertificate("an attribute is no type with a value")
    type, value = parts
    oid = _format_oid(data[type.begin : type.end])
    keyword = _KEYWORDS.get(oid)
    if keyword is None or value.tag not in _STRINGS:
        # The value with its tag and length begins where its type ends.
        return f"{keyword or oid}=#{data[type.end : value.end].hex()}"
    return f"{keyword}={_escape(data[value.begin : value.end].decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(f"\\{c}" if c in _ESCAPED else "\\00" if c == "\0" else c for c in text)
    inner = escaped.strip(" \r")
    if len(inner) == len(escaped):
        return escaped
    lead = len(escaped) - len(escaped.lstrip(" \r"))
    trail = escaped[lead + len(inner) :]
    return "".join(f"\\{c}" for c in escaped[:lead]) + inner + "".join(f"\\{c}" for c in trail)


def _format_oid(data: bytes) -> str:
    """Return an object identifier as decimals with dots."""
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or data[-1] & 0x80:
        raise MalformedCertificate("an object identifier is cut off")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _read_elements(data: bytes, at: int, end: int) -> list[_Element]:
    elements = []
    while at < end:
        element = _read_element(data, at, end)
        elements.append(element)
        at = element.end
    return elements


def _read_element(data: bytes, at: int, end: int, tag: int | None = None) -> _Element:
    if end - at < 2:
        raise MalformedCertificate("an element is cut off")
    found_tag, length, begin = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        if not 0 < count <= 4 or end - begin < count:
            raise MalformedCertificate("the length of an element is wrong")
        length = int.from_bytes(data[begin : begin + count], "big")
        begin += count
    if found_tag & 0x1F == 0x1F or begin + length > end or (tag is not None and found_tag != tag):
        raise MalformedCertificate("the certificate is no DER")
    return _Element(found_tag, begin, begin + length)

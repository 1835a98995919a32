"""TLS: the certificate of a listener, watched and replaced while it serves, and the trust in engines."""

import contextlib
import logging
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from narwhal.fleet.model import Tls
from narwhal.fleet.secrets import SecretError, require_private
from narwhal.fleet.trust import ALPN

log = logging.getLogger("narwhal.router")


class CertificateError(Exception):
    """A certificate cannot be used; the message names its key, its file and the next step."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A certificate that was read, with the context that serves it."""

    tls: Tls
    context: ssl.SSLContext
    expires: datetime
    stamp: tuple[object, ...]
    """Of its files when they were read."""


class Certificate:
    """A listener's certificate: what is served now, watched and replaced. Raises `CertificateError`."""

    def __init__(self, tls: Tls, key: str) -> None:
        self.key = key
        """Where it stands in the fleet file: `routers.tls`."""
        self.reloads = 0
        self.failures = 0
        """Replacements that could not be used."""
        self.now = _load(tls, key)
        self._seen = self._tried = self.now.stamp

    def check(self) -> None:
        """Take up a changed certificate, once its files have stood still from one look to the next."""
        stamp = _stamp(self.now.tls)
        changed, self._seen = stamp not in (self.now.stamp, self._tried) and stamp == self._seen, stamp
        if changed:
            self._tried = stamp
            with contextlib.suppress(CertificateError):  # said in the log
                self.use(self.read(self.now.tls))

    def read(self, tls: Tls) -> Loaded:
        """Read a replacement, which is not served yet. Raises `CertificateError`, logged and counted."""
        try:
            return _load(tls, self.key)
        except CertificateError as error:
            self.failures += 1
            log.error("%s; the former certificate is still served", error)
            raise

    def use(self, loaded: Loaded) -> None:
        """Serve a certificate to new connections."""
        if (loaded.tls, loaded.stamp) != (self.now.tls, self.now.stamp):
            self.now = loaded
            self.reloads += 1
            log.info("%s: the certificate was replaced; it expires on %s", self.key, loaded.expires.date())


def _load(tls: Tls, key: str) -> Loaded:
    stamp = _stamp(tls)
    try:
        require_private(Path(tls.key), f"{key}.key")
    except SecretError as error:
        raise CertificateError(str(error)) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    try:
        context.load_cert_chain(tls.cert, tls.key, password=_no_password)
        expires = _expiry(Path(tls.cert).read_text())
    except ssl.SSLError as error:
        why = error.reason or str(error)
        raise CertificateError(
            f"{key}: {tls.cert} and {tls.key} are not a certificate chain and its key in PEM: {why}"
        ) from None
    except (OSError, ValueError) as error:
        said = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        raise CertificateError(f"{key}: cannot use {tls.cert} with {tls.key}: {said}") from None
    if expires < datetime.now(UTC):
        log.warning("%s: %s expired on %s; clients will refuse it", key, tls.cert, expires.date())
    return Loaded(tls, context, expires, stamp)


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted; write it without a passphrase, readable by the router only")


def _stamp(tls: Tls) -> tuple[object, ...]:
    """What changes when a file is replaced or written."""
    stamps: list[object] = []
    for path in (tls.cert, tls.key):
        try:
            stat = os.stat(path)
            stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            stamps.append(None)
    return tuple(stamps)


def _expiry(pem: str) -> datetime:
    """When the first certificate of a chain ends (RFC 5280, 4.1.2.5). Raises `ValueError`."""
    begin = pem.index("-----BEGIN CERTIFICATE-----")
    end = pem.index("-----END CERTIFICATE-----", begin)
    der = memoryview(ssl.PEM_cert_to_DER_cert(pem[begin:end] + "-----END CERTIFICATE-----"))
    body = list(_parts(next(_parts(next(_parts(der))[1]))[1]))
    if body[0][0] == 0xA0:  # the version, which a certificate of version 1 lacks
        del body[0]
    _, (kind, when) = _parts(body[3][1])  # after serial number, algorithm and issuer: validity, from and to
    text = bytes(when).decode("ascii")
    return datetime.strptime(text, "%y%m%d%H%M%SZ" if kind == 0x17 else "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _parts(der: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The elements that follow one another in DER, as (tag, content)."""
    while der:
        length, at = der[1], 2
        if length & 0x80:
            at += length & 0x7F
            length = int.from_bytes(der[2:at], "big")
        yield der[0], der[at : at + length]
        der = der[at + length :]

"""Certificates for tests, made by `openssl`: one authority, and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path

    @property
    def yaml(self) -> str:
        return f"{{cert: {self.cert}, key: {self.key}}}"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=120)


def authority(folder: Path, name: str = "ca") -> Pair:
    """A certificate authority."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    openssl(*new, "-subj", f"/CN={name}", "-keyout", str(pair.key), "-out", str(pair.cert))
    return pair


def issue(ca: Pair, pair: Pair, *, days: int = 2, names: str = NAMES) -> Pair:
    """A certificate for this machine, written over whatever is there."""
    request, names_file = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".names")
    names_file.write_text(names)
    key = pair.key.with_suffix(".new")
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
    openssl("req", "-new", "-key", str(key), "-subj", "/CN=test", "-out", str(request))
    sign = ["x509", "-req", "-in", str(request), "-CA", str(ca.cert), "-CAkey", str(ca.key), "-CAcreateserial"]
    openssl(*sign, "-days", str(days), "-extfile", str(names_file), "-out", str(pair.cert))
    key.chmod(0o600)
    key.replace(pair.key)
    return pair

"""The control plane's own certificate: made once, known to everybody else by its fingerprint."""

from __future__ import annotations

import datetime
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from gpulayer.protocol.endpoint import write_private
from gpulayer.protocol.pin import fingerprint
from gpulayer_server.datafolder import DataFolderError

_DAYS = 30 * 365 + 7
_HEAD, _TAIL = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A certificate with its private key, both in one file of mode 0600."""

    path: Path
    fingerprint: str

    def context(self) -> ssl.SSLContext:
        """What a server that presents it listens with. Raises `DataFolderError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.path)
        except (OSError, ssl.SSLError) as error:
            raise DataFolderError(_unusable(self.path, str(error))) from error
        return context


def own_certificate(data: Path) -> Certificate:
    """The certificate of a data folder, made at the first call. Raises `DataFolderError`.

    What is there is never replaced: workers and clients know it by its fingerprint.
    """
    path = data / "tls" / "certificate.pem"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(path, _made(), durable=True)
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise DataFolderError(_unusable(path, str(error))) from error
    if mode & 0o077:
        raise DataFolderError(_unusable(path, f"others may read its key (mode {mode:o}, chmod 600 would be right)"))
    _, begins, rest = text.partition(_HEAD)
    body, ends, _ = rest.partition(_TAIL)
    if not begins or not ends:
        raise DataFolderError(_unusable(path, "it holds no certificate"))
    try:
        found = fingerprint(f"{_HEAD}{body}{_TAIL}\n")
    except ValueError as error:
        raise DataFolderError(_unusable(path, str(error))) from error
    return Certificate(path=path, fingerprint=found)


def _unusable(path: Path, why: str) -> str:
    text = f"{path} can't be used: {why}"
    return f"{text}; mend that, or remove the file: then a new one is made, and every machine has to join anew"


def _made() -> bytes:
    """A new private key and its certificate, as PEM."""
    from cryptography import x509  # only who makes one needs it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpulayer control plane")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("gpulayer")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + made.public_bytes(serialization.Encoding.PEM)

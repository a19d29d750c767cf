"""The server's certificate: given as files, or made by the server itself and pinned by its callers.

A self-signed certificate is trusted because its fingerprint is known: `join.token`, `admin.token` and every token that
the server makes carry it (`wlr_u_….sha256=HEX`), and agents and commands then accept no other certificate. A
certificate that an authority has signed is not pinned, so that it can be renewed.
"""

import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from socket import gethostname

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scheduler.live.store.data_folder import write_private
from walras.errors import ConfigError

_VALID = timedelta(days=3650)
#: The validity begins this much early, because clocks of machines differ.
_BEFORE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate (PEM, with its chain) and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The TLS context to listen with, and the fingerprint that callers pin."""

    context: ssl.SSLContext
    #: SHA-256 of a self-signed certificate, hexadecimal, which callers must compare; empty: an authority has signed it.
    pin: str


def own_certificate(folder: Path) -> TlsFiles:
    """Returns the self-signed certificate of a data folder, made at the first call."""
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    if not (files.certificate.is_file() and files.key.is_file()):
        certificate, key = _make_certificate()
        # The key is written first: a folder with a certificate then always has its key.
        write_private(files.key, key)
        write_private(files.certificate, certificate)
    return files


def _make_certificate() -> tuple[str, str]:
    """Returns a new self-signed certificate and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "walras")])
    now = datetime.now(UTC)
    hosts: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    if own_name := gethostname():
        hosts.append(x509.DNSName(own_name.encode("idna").decode()))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


def load_tls(files: TlsFiles) -> TlsMaterial:
    """Returns the context to listen with. Raises ConfigError where the files are not a certificate with its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"{files.certificate} and {files.key}: {why}",
            field="--tls-cert",
            fix="give a certificate (PEM) and its key without a password, readable by the server",
        ) from None
    chain = x509.load_pem_x509_certificates(files.certificate.read_bytes())
    signs_itself = len(chain) == 1 and chain[0].issuer == chain[0].subject
    return TlsMaterial(context, chain[0].fingerprint(hashes.SHA256()).hex() if signs_itself else "")


def _no_password() -> str:
    raise ValueError("the key has a password")

"""The fleet's certificates: one authority signs those of the broker and of all clients."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from toolkit.errors import CertificateError

AUTHORITY_DAYS = 3650  # 10 years: after that every device needs a new ca.pem
CLOCK_SKEW = timedelta(days=1)  # clocks of boards without a battery may be late
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+$){_LABEL}")  # 300.1.1.1 is not a name


@dataclass(frozen=True)
class Validity:
    """The time during which a certificate is valid."""

    start: datetime
    end: datetime

    @classmethod
    def of(cls, days: int, now: datetime | None = None) -> Validity:
        if not 1 <= days <= AUTHORITY_DAYS:
            raise CertificateError(
                f"a certificate is good for 1 to {AUTHORITY_DAYS} days, not {days}."
            )
        now = now or datetime.now(UTC)
        return cls(now - CLOCK_SKEW, now + timedelta(days=days))


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def make_authority(fleet: str, validity: Validity) -> Issued:
    """Returns a new authority, which can sign only leaf certificates (path length 0)."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(fleet, unit="fleet authority")
    builder = (
        _builder(subject, subject, key, validity)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return Issued(builder.sign(key, hashes.SHA256()), key)


def issue_server(
    authority: Issued, fleet: str, hosts: Sequence[x509.GeneralName], validity: Validity
) -> Issued:
    """Returns the broker's certificate, valid for these hosts."""
    subject = _name(fleet, unit="broker")
    return _issue(authority, subject, hosts, ExtendedKeyUsageOID.SERVER_AUTH, validity)


def issue_client(authority: Issued, fleet: str, user: str, validity: Validity) -> Issued:
    """Returns a client's certificate; its common name is the user's name."""
    who = x509.UniformResourceIdentifier(f"urn:stemshare:{fleet}:{user}")
    return _issue(authority, _name(user), [who], ExtendedKeyUsageOID.CLIENT_AUTH, validity)


def read_issued(certificate: bytes, key: bytes, where: str) -> Issued:
    """Reads a certificate and its key; raises a CertificateError if they do not match."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate)
        private = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError) as error:
        raise CertificateError(
            f"{where} does not hold a certificate and its unencrypted key."
        ) from error
    if (
        not isinstance(private, ec.EllipticCurvePrivateKey)
        or loaded.public_key() != private.public_key()
    ):
        raise CertificateError(f"{where} holds a certificate and the key of another one.")
    return Issued(loaded, private)


def serves(
    server: Issued, hosts: Iterable[x509.GeneralName], *, authority: bytes, until: datetime
) -> bool:
    """Whether the authority issued this certificate for exactly these hosts, valid `until` then."""
    leaf = server.certificate
    try:
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False
    return set(names) == set(hosts) and leaf.not_valid_after_utc > until


def alternative_names(hosts: Iterable[str]) -> tuple[x509.GeneralName, ...]:
    """Returns host names and IP addresses as a certificate states them, without duplicates."""
    return tuple(dict.fromkeys(map(_alternative_name, hosts)))


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        if "%" not in host:  # fe80::1%eth0 names an interface of one machine
            return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise CertificateError(
            f"{host[:80]!r} is neither a host name (letters, digits, hyphens and dots) "
            "nor an IP address."
        )
    return x509.DNSName(host.lower())


def _issue(
    authority: Issued,
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    validity: Validity,
) -> Issued:
    issuer = authority.certificate
    end = min(
        validity.end, issuer.not_valid_after_utc
    )  # no leaf is valid longer than its authority
    if end <= validity.start:
        raise CertificateError(
            f"the fleet's authority expired on {issuer.not_valid_after_utc:%Y-%m-%d}; "
            "provision the fleet anew in another folder."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    parent = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = (
        _builder(subject, issuer.subject, key, Validity(validity.start, end))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(parent, critical=False)
    )
    return Issued(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.start)
        .not_valid_after(validity.end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str, unit: str = "") -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, "stemshare"), (NameOID.ORGANIZATIONAL_UNIT_NAME, unit)]
    parts.append((NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts if text])


def _key_usage(*allowed: str) -> x509.KeyUsage:
    usages = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{usage: usage in allowed for usage in usages})

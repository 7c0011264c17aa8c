"""The certificate that TLS listeners show. It can be replaced while they are open: new connections get the new one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class LoadedCertificate:
    """A certificate chain and its key, as HTTP and as gRPC want them."""

    context: ssl.SSLContext
    certificate_pem: bytes
    key_pem: bytes


class Certificate:
    """What listeners show at present. Out of two PEM files; StrettoError where they cannot be used."""

    def __init__(self, certificate: str, key: str) -> None:
        self.current = load_certificate(certificate, key)

    def http_context(self) -> ssl.SSLContext:
        """For a listener that is opened once: every handshake goes on with the certificate of that moment."""

        def use_current(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, asked: ssl.SSLContext) -> None:
            connection.context = self.current.context

        context = _context()
        context.sni_callback = use_current  # type: ignore[assignment]  # it is called also where no name is asked for
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The same for gRPC, which asks at every handshake."""
        import grpc

        def current() -> grpc.ServerCertificateConfiguration:
            pair = (self.current.key_pem, self.current.certificate_pem)
            return grpc.ssl_server_certificate_configuration([pair])

        return grpc.dynamic_ssl_server_credentials(current(), current)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load_certificate(certificate: str, key: str) -> LoadedCertificate:
    """Reads files. StrettoError where they cannot be used, or do not belong together."""
    context = _context()
    try:
        context.load_cert_chain(certificate, key)
        return LoadedCertificate(context, Path(certificate).read_bytes(), Path(key).read_bytes())
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        raise StrettoError(f"the TLS certificate or key cannot be used ({reason or type(error).__name__})") from None

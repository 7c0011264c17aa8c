"""The certificate that TLS listeners show. It can be replaced while they are open: new connections get the new one."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    import grpc


class Certificate:
    """A certificate chain and its key, out of two PEM files."""

    def __init__(self, certificate: str, key: str) -> None:
        self._context, self._pem = _loaded(certificate, key)

    def replace(self, certificate: str, key: str) -> None:
        """StrettoError where the files cannot be used; then all stays as it was."""
        self._context, self._pem = _loaded(certificate, key)

    def http_context(self) -> ssl.SSLContext:
        """For a listener that is opened once: every handshake goes on with the certificate of that moment."""

        def use_current(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, asked: ssl.SSLContext) -> None:
            connection.context = self._context

        context = _context()
        context.sni_callback = use_current  # type: ignore[assignment]  # it is called also where no name is asked for
        return context

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """The same for gRPC, which asks at every handshake."""
        import grpc

        def current() -> grpc.ServerCertificateConfiguration:
            certificate, key = self._pem
            return grpc.ssl_server_certificate_configuration([(key, certificate)])

        return grpc.dynamic_ssl_server_credentials(current(), current)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _loaded(certificate: str, key: str) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
    context = _context()
    try:
        context.load_cert_chain(certificate, key)  # which also sees whether they belong together
        return context, (Path(certificate).read_bytes(), Path(key).read_bytes())
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else None
        raise StrettoError(f"the TLS certificate or key cannot be used ({reason or type(error).__name__})") from None

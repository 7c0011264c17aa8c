"""Addresses of this machine and of others, as users write them."""

from __future__ import annotations

import ipaddress

from stretto.core.errors import StrettoError

SCHEME = "tcp://"


def is_loopback(host: str) -> bool:
    """Also where it is a name. `127.0.0.1.example.com` is none, whatever it begins with."""
    try:
        address = ipaddress.ip_address(host)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.is_loopback
    except ValueError:
        return host in ("localhost", "localhost.")


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Of tcp://HOST:PORT, or tcp://[HOST]:PORT. StrettoError where it is none."""
    host, colon, port = endpoint.removeprefix(SCHEME).rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_number = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    if not endpoint.startswith(SCHEME) or not colon or not host or not is_number or not _is_name(host):
        raise StrettoError(f"{endpoint[:80]!r} is no address; write it as tcp://127.0.0.1:9300")
    return host, int(port)


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
        return True
    except ValueError:
        return len(host) <= 253 and all(each.isascii() and (each.isalnum() or each in "-._") for each in host)

"""Who may take part: holders of one shared key. From it both key pairs of CURVE are made, for those that listen and for
those that call, so that everything is encrypted and nobody else gets in. Without a key, only this machine can be spoken
with.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from stretto.core.address import host_and_port, is_loopback
from stretto.core.errors import StrettoError

LEAST_KEY = 16  # characters
SALT = b"stretto cluster: "
COST = 2**14  # of scrypt: 16 MB and some 50 ms, once a process


@dataclass(frozen=True)
class Pair:
    public: bytes
    secret: bytes


@dataclass(frozen=True)
class Keys:
    """Of those that listen, and of those that call."""

    listening: Pair
    calling: Pair


def keys_from(key: bytes | None) -> Keys | None:
    if key is None:
        return None
    if len(key) < LEAST_KEY:
        raise StrettoError(f"the shared key has {len(key)} characters; it needs at least {LEAST_KEY}")
    return Keys(_pair(key, b"listening"), _pair(key, b"calling"))


def _pair(key: bytes, role: bytes) -> Pair:
    secret = z85.encode(hashlib.scrypt(key, salt=SALT + role, n=COST, r=8, p=1, dklen=32))
    return Pair(zmq.curve_public(secret), secret)


def checked_endpoint(endpoint: str, key: bytes | None) -> tuple[str, int]:
    """Host and port. StrettoError where it is another machine's, or open to others, and there is no key."""
    host, port = host_and_port(endpoint)
    if key is None and not is_loopback(host):
        raise StrettoError(
            f"{endpoint} can be reached from other machines, and without a key anybody there could take part: "
            "give every process the same key (--key-file), or stay on 127.0.0.1"
        )
    return host, port

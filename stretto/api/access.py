"""Who may call a listener: bearer tokens, and, where there are none, which names a browser may know it by.

A listener of this machine is within reach of every web page that this machine's user opens. Such a page cannot read
what another site answers, unless its own name is made to point here (DNS rebinding); but it can send. So a management
listener without a token takes calls only for a name of its own, and none that a page of another site makes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from stretto.api.errors import ApiError, Reason
from stretto.core.address import is_loopback

ANYBODY = b""  # the account of a caller without a token
FOREIGN = "this listener has no token: it may be called by a name of this machine only, and by no page of another site"
MISSING = "a bearer token is needed: Authorization: Bearer …"


class Access:
    """Of one listener. `own_host` is what it is bound to, where callers without a token are held to names of its own.

    A token is its holder's account (api/rates.py). Tokens can be replaced while the listener is open.
    """

    def __init__(self, tokens: Sequence[str] = (), own_host: str | None = None) -> None:
        self._own_host = None if own_host is None else own_host.lower()
        self._accounts: frozenset[bytes] = frozenset()
        self.replace(tokens)

    def replace(self, tokens: Sequence[str]) -> None:
        """From now on these are right, and no others."""
        self._accounts = frozenset(_account(token.encode()) for token in tokens)
        self.is_open = not self._accounts and self._own_host is None  # there is nothing to check

    @property
    def needs_token(self) -> bool:
        return bool(self._accounts)

    def admit(self, authorization: bytes, host: bytes = b"", origin: bytes = b"") -> bytes:
        """The caller's account. ApiError where it may not call."""
        if self._accounts:
            account = self.account_of(authorization)
            if account is None:
                raise ApiError(Reason.UNAUTHENTICATED, MISSING)
            return account
        if self._own_host is not None and not self._is_own(host, origin):
            raise ApiError(Reason.FORBIDDEN, FOREIGN)
        return ANYBODY

    def account_of(self, authorization: bytes) -> bytes | None:
        """Digests are looked up, so that the time it takes says nothing of a token."""
        scheme, _, given = authorization.partition(b" ")
        account = _account(given.strip())
        return account if scheme.lower() == b"bearer" and account in self._accounts else None

    def _is_own(self, host: bytes, origin: bytes) -> bool:
        """No browser leaves out the host, and none leaves out the origin of a page of another site that sends."""
        named = host.decode("latin-1").lower()
        if origin and origin.decode("latin-1").lower().partition("://")[2] != named:
            return False
        name = _without_port(named)
        return not named or name == self._own_host or is_loopback(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _account(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()

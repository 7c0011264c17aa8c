"""Who may call a listener: tokens, whatever the case of their scheme; without them, no page of another site."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stretto.api.access import Access, is_loopback
from stretto.cli.inputs import token_in, tokens_in
from stretto.core.errors import StrettoError
from tests.api.serving import INFER, PINNED, Reply, Running, images, json_body

ONE = json_body(images())
TOKEN = "0123456789abcdef"


def ask(server: Running, method: str, path: str, *headers: str, name: str = "management", body: bytes = b"") -> Reply:
    """With these headers and no others."""
    lines = [f"{method} {path} HTTP/1.1", *headers, f"Content-Length: {len(body)}", "", ""]
    with server.wire(name) as wire:
        wire.send("\r\n".join(lines).encode("latin-1") + body)
        return wire.reply()


# -- names and origins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        ("Host: evil.example",),
        ("Host: evil.example:8082",),
        ("Host: 127.0.0.1.evil.example",),
        ("Host: 127.evil.example:80",),
        ("Host: localhost.evil.example",),
        ("Host: 10.0.0.7",),
        ("Host: [2001:db8::1]:8082",),
        ("Host: localhost:8082", "Origin: http://evil.example"),
        ("Host: localhost:8082", "Origin: null"),
        ("Host: localhost:8082", "Origin: http://localhost:3000"),
        ("Host: localhost:8082", "Origin: http://127.0.0.1:8082"),
        ("Origin: http://evil.example",),
    ],
)
def test_a_page_of_another_site_cannot_manage(server: Running, headers: tuple[str, ...]) -> None:
    """They used to be answered: a page could unload models, or read metrics by DNS rebinding."""
    before = server.plane.refused.get("forbidden", 0)
    calls = [
        ("GET", "/metrics", b""),
        ("GET", "/v2/fleet", b""),
        ("GET", "/v2/partition", b""),
        ("POST", "/v2/partition", b"{}"),
        ("POST", "/v2/repository/index", b""),
        ("POST", "/v2/repository/models/fashion/unload", b""),
        ("POST", INFER, ONE),
        ("POST", INFER, ONE),  # by the short way of an address that is known
    ]
    for method, path, body in calls:
        reply = ask(server, method, path, *headers, body=body)
        assert (reply.status, reply.reason) == (403, "forbidden")
    assert server.plane.refused["forbidden"] == before + len(calls)
    assert ask(server, "GET", "/v2/health/ready", *headers).status == 200  # probes have names of their own


@pytest.mark.parametrize(
    "headers",
    [
        ("Host: evil.example", "Host: localhost"),
        ("Host: localhost", "Host: localhost"),
        ("Host: localhost:8082", "Origin: http://evil.example", "Origin: http://localhost:8082"),
    ],
)
def test_who_is_asked_and_by_whom_is_said_once(server: Running, headers: tuple[str, ...]) -> None:
    """The last one used to be the one that was checked."""
    assert [ask(server, "GET", path, *headers).status for path in ("/metrics", "/v2")] == [400, 400]
    assert ask(server, "POST", INFER, *headers, body=ONE).status == 400


@pytest.mark.parametrize(
    "headers",
    [
        ("Host: localhost:8082",),
        ("Host: LocalHost",),
        ("Host: 127.0.0.1:1",),
        ("Host: 127.8.9.10",),
        ("Host: [::1]:8082",),
        ("Host: localhost:8082", "Origin: http://localhost:8082"),
        (),
    ],
)
def test_who_is_here_can(server: Running, headers: tuple[str, ...]) -> None:
    for method, path, body in (("GET", "/metrics", b""), ("POST", "/v2/repository/index", b""), ("POST", INFER, ONE)):
        assert ask(server, method, path, *headers, body=body).status == 200


def test_inference_is_open_to_other_names(server: Running) -> None:
    assert ask(server, "POST", PINNED, "Host: models.example", name="http", body=ONE).status == 200


def test_the_address_it_is_bound_to_is_its_own() -> None:
    access = Access((), "models.internal")
    assert access.admit(b"", b"Models.internal:8082") == b""
    assert not access.is_open and not access.needs_token and Access().is_open
    assert Access((TOKEN,), "::1").admit(b"Bearer " + TOKEN.encode(), b"evil.example", b"null")  # a token is enough


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")))
    assert not any(
        map(
            is_loopback, ("127.evil.example", "0.0.0.0", "::", "10.0.0.1", "", "127.", "::1.example", "::ffff:10.0.0.1")
        )
    )


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_the_scheme_is_case_blind_and_the_token_is_not(repository: Path) -> None:
    """`bearer` used to be refused over HTTP, though gRPC took it."""
    with Running(repository, token=TOKEN, management_token=TOKEN) as server:
        for scheme in ("Bearer", "bearer", "BEARER", "bEaReR", "Bearer "):
            given = f"Authorization: {scheme} {TOKEN}"
            for _ in range(2):
                assert ask(server, "POST", INFER, "Host: x", given, name="http", body=ONE).status == 200
            assert ask(server, "GET", "/metrics", "Host: evil.example", given).status == 200
        for wrong in (f"bearer {TOKEN.upper()}", f"bearer{TOKEN}", f"basic {TOKEN}", "bearer", ""):
            reply = ask(server, "POST", INFER, "Host: x", f"Authorization: {wrong}", name="http", body=ONE)
            assert (reply.status, reply.reason) == (401, "unauthenticated")


def test_any_of_several_tokens_is_right_and_each_is_an_account() -> None:
    tokens = (TOKEN, TOKEN[::-1])
    access = Access(tokens)
    accounts = {access.account_of(b"bearer " + token.encode()) for token in tokens}
    assert len(accounts) == 2 and None not in accounts
    assert all(token.encode() not in (account or b"") for token in tokens for account in accounts)
    access.replace(("another token of mine",))
    assert access.account_of(b"Bearer " + TOKEN.encode()) is None
    assert access.account_of(b"Bearer another token of mine")


def test_token_files_are_small_and_plain(tmp_path: Path) -> None:
    """A pipe used to hold the start for ever, and a device without an end took all memory."""
    file = tmp_path / "token"
    os.mkfifo(tmp_path / "pipe")
    file.write_text("x" * 64_001)
    for wrong in (tmp_path / "pipe", Path("/dev/zero"), tmp_path, file):
        with pytest.raises(StrettoError, match="plain file of at most 64 kB"):
            tokens_in(wrong)
    with pytest.raises(StrettoError, match="No such file"):
        tokens_in(tmp_path / "none")
    for text in ("", "short", "has spaces in it, many", "0123456789abcdef\nshort\n", "né" * 20):
        file.write_text(text)
        with pytest.raises(StrettoError, match="token"):
            tokens_in(file)
    file.write_text(f"{TOKEN}\n\n{TOKEN[::-1]}\n")
    assert tokens_in(file) == (TOKEN, TOKEN[::-1]) and tokens_in(None) == ()
    with pytest.raises(StrettoError, match="holds 2 tokens"):
        token_in(file)
    (tmp_path / "link").symlink_to(file)  # as secrets are mounted
    assert tokens_in(tmp_path / "link")

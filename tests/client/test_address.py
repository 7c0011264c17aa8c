"""URLs, tokens and paths: what is refused, and what requests look like."""

from __future__ import annotations

import pytest

from stretto.client.address import endpoint_of, model_path
from stretto.core.errors import StrettoError


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://a",
        "http://",
        "http://a:99999",
        "http://user:pass@a",
        "http://a/?b",
        "http://ä/",
        "http://a b",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(StrettoError):
        endpoint_of(url)


@pytest.mark.parametrize("token", ["", "a b", "a\r\nX: y", "ä", "a" * 9000])
def test_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(StrettoError, match="token"):
        endpoint_of("http://a", token)


def test_a_ca_file_needs_https_and_certificates(tmp_path: object) -> None:
    with pytest.raises(StrettoError, match="https"):
        endpoint_of("http://a", ca_file="x.pem")
    with pytest.raises(StrettoError, match="cannot be used"):
        endpoint_of("https://a", ca_file=f"{tmp_path}/missing.pem")


def test_the_head_of_a_request() -> None:
    endpoint = endpoint_of("http://[::1]:8080/front/", "secret")
    assert (endpoint.host, endpoint.port, endpoint.prefix, endpoint.shown) == (
        "::1",
        8080,
        "/front",
        "http://[::1]:8080",
    )
    head = endpoint.post(model_path("a/b", "v 1", "infer"), (b"{}", b"\0\0\0"), 2).head.decode()
    lines = head.split("\r\n")
    assert lines[0] == "POST /front/v2/models/a%2Fb/versions/v%201/infer HTTP/1.1"
    assert {"Host: [::1]:8080", "Content-Length: 5", "Inference-Header-Content-Length: 2"} <= set(lines)
    assert "Authorization: Bearer secret" in lines and lines[-2:] == ["", ""]
    assert endpoint_of("https://a").port == 443 and endpoint_of("http://a").port == 80

"""Who may call: bearer tokens and TLS. And on what the server listens, and what it bounds there."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import grpc
import numpy as np
import pytest

from stretto.api.access import Access
from stretto.api.certificates import Certificate
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.server import bind, make_server
from stretto.api.limits import Limits
from tests.api.grpc.mirror_plane import MirrorPlane
from tests.api.grpc.running import SERVICE, Client, failure, raw_request, reason_of, run, served, text

ONE = np.ones((1, 2), np.float32)


def bearer(value: str) -> dict[str, object]:
    return {"metadata": (("authorization", value),)}


def test_a_token_is_asked_for() -> None:
    async def scenario() -> None:
        async with served(token="s3cret") as client:
            assert (await client.infer(raw_request(ONE), **bearer("Bearer s3cret"))).outputs
            assert (await client.infer(raw_request(ONE), **bearer("bearer s3cret"))).outputs
            wrong = ("Bearer s3cre", "Bearer ", "s3cret", "Basic s3cret", "")
            for options in ({}, *(bearer(value) for value in wrong)):
                error = await failure(client.infer(raw_request(ONE), **options))
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED
                assert reason_of(error) == "unauthenticated"
                assert "s3cret" not in error.details()
            assert len(client.plane.seen) == 2
            assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live
            assert (await client.call("ServerReady", protocol.ServerReadyRequest())).ready
            for name in ("ServerMetadata", "ModelReady", "RepositoryIndex", "RepositoryModelUnload"):
                error = await failure(client.call(name, getattr(protocol, f"{name}Request")()))
                assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert (await failure(client.send("NoSuchCall", b""))).code() == grpc.StatusCode.UNAUTHENTICATED

    run(scenario())


def test_without_the_token_a_message_is_not_read() -> None:
    """The answer comes though the client's message never ends."""

    async def scenario() -> None:
        async with served(token="s3cret") as client:
            call = client.channel.stream_unary(SERVICE + "ModelInfer")(timeout=20)
            assert (await failure(call)).code() == grpc.StatusCode.UNAUTHENTICATED

    run(scenario())


def test_a_busy_address_is_refused() -> None:
    """With port sharing, which gRPC turns on by itself, both servers would get some of the calls."""

    async def scenario() -> None:
        async with served() as client:
            second = make_server(MirrorPlane(), limits=Limits(), is_management=False, access=Access())
            with pytest.raises(OSError, match=client.address):
                bind(second, client.address)
            await second.stop(0)

    run(scenario())


def test_calls_of_one_connection_are_bounded() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(streams_per_connection=2)) as client:
            held = [
                asyncio.ensure_future(client.infer(raw_request(ONE, id=str(n), parameters={"hold": text(str(n))})))
                for n in range(4)
            ]
            await client.plane.until_running(2)
            for n in range(4):
                client.plane.gates[str(n)].set()
            # The others wait in the client, or gRPC refuses them if they come at once after another has ended.
            for answer in await asyncio.gather(*held, return_exceptions=True):
                assert not isinstance(answer, grpc.aio.AioRpcError) or answer.code() == grpc.StatusCode.UNAVAILABLE
            assert client.plane.most_running == 2

    run(scenario())


def test_connections_are_bounded() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(connections=1)) as client:
            assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(client.address, options=own) as channel:
                other = Client(client.plane, client.server, client.address, channel)
                error = await failure(other.call("ServerLive", protocol.ServerLiveRequest(), timeout=5))
                assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live

    run(scenario())


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")

    async def scenario() -> None:
        plane = MirrorPlane()
        server = make_server(plane, limits=Limits(), is_management=False, access=Access())
        port = bind(server, "127.0.0.1:0", Certificate(str(certificate), str(key)).grpc_credentials())
        await server.start()
        address = f"127.0.0.1:{port}"
        named = [("grpc.ssl_target_name_override", "localhost")]
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        try:
            async with grpc.aio.secure_channel(address, trusted, options=named) as channel:
                assert (await Client(plane, server, address, channel).infer(raw_request(ONE))).outputs
            async with grpc.aio.insecure_channel(address) as channel:
                call = Client(plane, server, address, channel).call("ServerLive", protocol.ServerLiveRequest())
                assert (await failure(call)).code() == grpc.StatusCode.UNAVAILABLE
        finally:
            await server.stop(0)

    run(scenario())

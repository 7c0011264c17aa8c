"""`stretto network`: put any client of a server behind a link that has a trace's bandwidth, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretto.cli.bandwidth import DelayMs, OffsetS, QueueBytes, Scale, StepS, TraceForm, read_bandwidth
from stretto.cli.options import Json
from stretto.cli.output import print_json, print_tables
from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.client.network import Link, Proxy

LOOK_S = 1.0  # between two lines that say how it goes

Trace = Annotated[
    str, typer.Argument(metavar="TRACE", help="A file, a rate as 5mbit, or steady, steps, fading or outages.")
]
To = Annotated[str, typer.Option(metavar="HOST:PORT", help="The server that clients are to reach.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; loopback unless given.")]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="Where to listen; 0: any free port.")]
Down = Annotated[
    str | None, typer.Option(metavar="TRACE", help="Bandwidth towards the clients; without it a gigabit a second.")
]
Seconds = Annotated[float | None, typer.Option(metavar="S", min=0.1, max=864_000, help="End by itself after so long.")]


def network(
    trace: Trace,
    to: To = "127.0.0.1:8080",
    port: Port = 8090,
    host: Host = "127.0.0.1",
    down: Down = None,
    delay_ms: DelayMs = 0.0,
    form: TraceForm = "mbit",
    step_s: StepS = 1.0,
    scale: Scale = 1.0,
    offset_s: OffsetS = 0.0,
    queue_bytes: QueueBytes = 65_536,
    seconds: Seconds = None,
    as_json: Json = False,
) -> None:
    """Listen on a port, and pass everything on to a server, no faster than a trace of bandwidths allows.

    All connections share one link, as the programs on one device do. Ctrl-C ends it.

    \b
    Examples:
      stretto network fading --to 127.0.0.1:8080 --port 8090
      stretto network wifi.txt --scale 0.1 --delay-ms 10
      stretto network lte.up --form mahimahi --down lte.down
      stretto infer fashion sample --url http://127.0.0.1:8090
    """
    from stretto.client.network import Link

    to_host, to_port = _address(to)

    def direction(name: str) -> Any:
        return read_bandwidth(name, form, step_s, scale).shifted(round(offset_s * 1e9))

    delay_ns = round(delay_ms * 1e6)
    link = Link(direction(trace), None if down is None else direction(down), delay_ns, delay_ns, queue_bytes)
    summary = asyncio.run(_serve(link, to_host, to_port, host, port, seconds))
    if as_json:
        print_json(summary)
    else:
        _print(summary, trace)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65_535:
        raise StrettoError(f"{text[:80]!r} is no address of a server; write it as 127.0.0.1:8080")
    return host, int(port)


async def _serve(link: Link, to_host: str, to_port: int, host: str, port: int, seconds: float | None) -> dict[str, Any]:
    from stretto.client.network import Proxy
    from stretto.client.network.proxy import check_reachable

    await check_reachable(to_host, to_port)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Proxy(to_host, to_port, link, host=host, port=port) as proxy:
        shown = f"[{host}]" if ":" in host else host
        typer.echo(f"listening on {shown}:{proxy.port}, passing on to {to_host}:{to_port}; Ctrl-C ends it", err=True)
        watching = asyncio.create_task(_watch(proxy)) if sys.stderr.isatty() else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
        if watching is not None:
            watching.cancel()
        return _summary(proxy)


async def _watch(proxy: Proxy) -> None:
    """One line that is written anew: the rate that the trace gives, and what was used of it."""
    before = proxy.up.counts
    while True:
        start_ns = time.monotonic_ns()
        await asyncio.sleep(LOOK_S)
        counts, now_ns = proxy.up.counts, time.monotonic_ns()
        used = (counts.delivered - before.delivered) * 8e3 / (now_ns - start_ns)
        given = proxy.link.up.mean_over(start_ns - proxy.start_ns, now_ns - proxy.start_ns) * 8e-6
        before = counts
        text = f"{proxy.open_connections} connections, {used:.3f} of {given:.3f} Mbit/s, {proxy.up.queued:,} bytes wait"
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _summary(proxy: Proxy) -> dict[str, Any]:
    elapsed_ns = time.monotonic_ns() - proxy.start_ns
    link = proxy.link
    result: dict[str, Any] = {
        "seconds": elapsed_ns / 1e9,
        "connections": proxy.connections,
        "refused": proxy.refused,
        "delay_ms": link.up_delay_ns / 1e6,
    }
    for name, direction, bandwidth in (("up", proxy.up, link.up), ("down", proxy.down, link.down)):
        counts = direction.counts
        result[name] = {
            "received_bytes": counts.received,
            "delivered_bytes": counts.delivered,
            "lost_bytes": counts.lost,
            "used_mbit": counts.delivered * 8e3 / elapsed_ns,
            "given_mbit": None if bandwidth is None else bandwidth.mean_over(0, elapsed_ns) * 8e-6,
        }
    return result


def _print(summary: dict[str, Any], trace: str) -> None:
    from stretto.report.tables import figures_table, whole

    def rate(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    table = figures_table(
        f"{trace}: {summary['seconds']:.1f} s, {summary['connections']} connections, {summary['refused']} refused",
        "direction",
        ["bytes in", "bytes out", "lost", "used Mbit/s", "given Mbit/s"],
        {
            name: [
                *(whole(row[key]) for key in ("received_bytes", "delivered_bytes", "lost_bytes")),
                rate(row["used_mbit"]),
                rate(row["given_mbit"]),
            ]
            for name, row in (("up", summary["up"]), ("down", summary["down"]))
        },
    )
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    print_tables(table)

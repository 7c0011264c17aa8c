"""When the last bytes of a connection came, as the kernel knows it: the event loop may read them much later."""

from __future__ import annotations

import asyncio
import socket
import sys

LAST_DATA_AT = 52  # of Linux's struct tcp_info: tcpi_last_data_recv, in ms
INFO_BYTES = 60


def lain_ns(transport: asyncio.BaseTransport) -> int:
    """How long ago the last data of a connection arrived; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    try:
        info = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except OSError:
        return 0  # not TCP
    return int.from_bytes(info[LAST_DATA_AT : LAST_DATA_AT + 4], sys.byteorder) * 1_000_000

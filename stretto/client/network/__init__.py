"""A network to try clients on, on one machine: links with a trace's bandwidth and a delay, and a proxy around them.

Imports stretto.core only. Nothing here needs a privilege or changes the machine's own network.
"""

from stretto.client.network.link import Link
from stretto.client.network.proxy import Counts, Proxy

__all__ = ["Counts", "Link", "Proxy"]

"""Runs a load: prepares everything that costs time or could go wrong, then lets the generator drive it."""

from __future__ import annotations

import numpy as np

from stretto.client.address import endpoint_of
from stretto.client.async_client import AsyncClient
from stretto.client.errors import NotFound, StrettoClientError
from stretto.client.load.arrivals import arrival_times_ns
from stretto.client.load.generator import Generator, ReportProgress
from stretto.client.load.queries import encoded_requests
from stretto.client.load.record import Record
from stretto.client.load.result import LoadResult
from stretto.client.load.spec import LoadSpec
from stretto.client.metadata import ApplicationConfiguration, application_configuration, application_metadata
from stretto.client.quiet_loop import driven

PREPARING_TIMEOUT_MS = 10_000.0


def run_load(spec: LoadSpec, progress: ReportProgress | None = None) -> LoadResult:
    """Sends the load in an event loop of its own, and waits for its end. Ctrl-C ends it early, and keeps the result."""
    return driven(prepared(spec, progress), Generator.run).result()


async def drive(spec: LoadSpec, progress: ReportProgress | None = None) -> LoadResult:
    """The same inside a running event loop, which should have little else to do."""
    generator = await prepared(spec, progress)
    await generator.run()
    return generator.result()


async def prepared(spec: LoadSpec, progress: ReportProgress | None = None) -> Generator:
    """A generator that has all it needs and only waits to be run."""
    times_ns = arrival_times_ns(spec)
    endpoint = endpoint_of(spec.url, spec.token, spec.ca_file)
    async with AsyncClient(spec.url, token=spec.token, ca_file=spec.ca_file, timeout_ms=PREPARING_TIMEOUT_MS) as client:
        metadata = application_metadata(await client.metadata(spec.application))
        if spec.version and not await client.ready(spec.application, spec.version):
            raise NotFound(f"application {spec.application} has no variant {spec.version} that is ready")
        configured = await configuration_of(client, spec.application)
    requests = encoded_requests(spec, endpoint, metadata)
    choice = np.random.default_rng((spec.seed, 1)).integers(0, len(requests.encoded), len(times_ns))
    deadline_ms = configured.slo_ms if spec.deadline_ms is None else spec.deadline_ms
    deadline_ns = None if deadline_ms is None else round(deadline_ms * 1e6)
    record = Record(times_ns, requests.labels, deadline_ns, (*configured.ladder, *metadata.versions))
    return Generator(spec, endpoint, requests, choice.tolist(), record, deadline_ns, progress, configured.penalty)


async def configuration_of(client: AsyncClient, application: str) -> ApplicationConfiguration:
    """As the server tells it; empty where it does not."""
    try:
        return application_configuration(await client.configuration(application))
    except StrettoClientError:
        return ApplicationConfiguration()

"""From what a person typed to the scenarios to run."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.core.errors import StrettoError

if TYPE_CHECKING:
    from stretto.cli.scenario.read import Scenario

DEFAULT_WORKERS = 8
MOST_TOKEN_BYTES = 64_000


def described_scenario(
    file: Path | None, model: str | None, slo_ms: float | None, workers: int | None, arrivals: str | None
) -> Scenario:
    """A scenario file, or one published model on equal workers."""
    from stretto.cli.scenario.read import read_scenario

    if file is None and model is None:
        raise StrettoError("name a scenario file, or a model with --model symphony_1080ti:ResNet50")
    if file is None:
        assert model is not None
        return _one_model(model, slo_ms, DEFAULT_WORKERS if workers is None else workers, arrivals or "poisson")
    for option, given in (("--model", model), ("--slo-ms", slo_ms), ("--workers", workers), ("--arrivals", arrivals)):
        if given is not None:
            raise StrettoError(f"{option} describes what the scenario file already says; leave one of them out")
    return read_scenario(file)


def _one_model(model: str, slo_ms: float | None, workers: int, arrivals: str) -> Scenario:
    """Written as a scenario, so that every bound of a scenario holds here too."""
    from stretto.cli.scenario.read import parse_scenario
    from stretto.config.fields import ConfigError

    kind, _, shape = arrivals.partition(":")
    try:
        shape_line = [f"shape = {float(shape)!r}"] if shape else []
    except ValueError:
        raise StrettoError(f"the shape {shape[:40]!r} is no number; write it as gamma:0.5") from None
    lines = [
        *("[cluster]", f"workers = {workers}", "[[application]]", 'name = "application"'),
        *([] if slo_ms is None else [f"slo_ms = {slo_ms!r}"]),
        *("[[application.variant]]", f"published = {_quoted(model)}", 'name = "variant"'),
        *("[load]", "rate = 1.0", f"kind = {_quoted(kind)}", *shape_line),
    ]
    try:
        scenario = parse_scenario("\n".join(lines))
    except ConfigError as error:
        # There is no file whose line could help.
        raise StrettoError(error.message) from None
    return replace(scenario, name=f"{model} on {workers} workers, {arrivals}")


def _quoted(text: str) -> str:
    if not text.isprintable() or "'" in text:
        raise StrettoError(f"{text[:40]!r} is no name")
    return f"'{text}'"


def adjusted(scenario: Scenario, seed: int | None, seconds: float | None) -> Scenario:
    """With the seed and the length that were given on the command line."""
    from stretto.cli.scenario.read import MAX_SECONDS, MAX_SEED

    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise StrettoError(f"--seed is {seed}; it must be from 0 to {MAX_SEED}")
    if seconds is not None and not scenario.warmup_seconds < seconds <= MAX_SECONDS:
        raise StrettoError(
            f"--seconds is {seconds:g}; it must be above the warmup of {scenario.warmup_seconds:g} "
            f"and at most {MAX_SECONDS:g}"
        )
    return replace(
        scenario,
        seed=scenario.seed if seed is None else seed,
        seconds=scenario.seconds if seconds is None else seconds,
    )


def under_planners(scenario: Scenario, planner: str | None, compare: str | None) -> dict[str, Scenario]:
    """The scenario under each planner asked for, by the planner's name."""
    if planner is not None and compare is not None:
        raise StrettoError("--planner and --compare both name planners; give one of them")
    names = [scenario.planner.name] if planner is None else [planner]
    if compare is not None:
        names = [name.strip() for name in compare.split(",") if name.strip()]
        if not names:
            raise StrettoError("--compare names no planner; give some, as symphony,clockwork")
    return {name: scenario.with_planner(name) for name in names}


def token_in(file: Path | None) -> str | None:
    """The bearer token in a file, which is one line; files, so that it stands in no list of processes."""
    tokens = tokens_in(file)
    if len(tokens) > 1:
        raise StrettoError(f"{file} holds {len(tokens)} tokens; a client needs one")
    return tokens[0] if tokens else None


def tokens_in(file: Path | None) -> tuple[str, ...]:
    """The bearer tokens in a file, one a line. No file: none."""
    if file is None:
        return ()
    try:
        lines = (line.strip() for line in _small_plain_file(file).decode("ascii").splitlines())
        tokens = tuple(line for line in lines if line)
    except UnicodeDecodeError:
        raise StrettoError(f"{file} cannot be read as a token; it must hold one line of ASCII text") from None
    if not tokens or any(not 16 <= len(token) <= 4096 or not token.isprintable() or " " in token for token in tokens):
        raise StrettoError(f"{file} must hold one token of at least 16 characters a line, without spaces")
    return tokens


def key_in(file: Path | None) -> bytes | None:
    """The key that all processes of a cluster share, which is one line of a file, as a token is."""
    tokens = tokens_in(file)
    if len(tokens) > 1:
        raise StrettoError(f"{file} holds {len(tokens)} lines; a cluster has one key")
    return tokens[0].encode() if tokens else None


def _small_plain_file(file: Path) -> bytes:
    """A pipe would be waited for, and a device may have no end."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_TOKEN_BYTES:
                raise StrettoError(f"{file} must be a plain file of at most {MOST_TOKEN_BYTES // 1000} kB")
            return os.read(descriptor, MOST_TOKEN_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StrettoError(f"{file} cannot be read as a token ({error.strerror})") from None

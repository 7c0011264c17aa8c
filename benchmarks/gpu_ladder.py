"""The parts of gpu_serve with real accuracies: the ladder of training.gpu under bursts, and under steady loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu_load import Drive
from benchmarks.gpu_models import accuracies, best_throughput, profiles
from benchmarks.gpu_stage import HOLDS, WITHOUT, WITHOUT_VARIABLE, LeftOut, Stage, environment, wait_for_workers
from stretto.cli.started import Started


def ladder(stage: Stage) -> None:
    """Bursts as in the demo, for Stretto's own choice and for each variant alone: right answers on time. Images are
    sent as they are, 28 by 28 bytes, and enlarged on the GPU: with bodies of 400 kB bursts would measure the socket.
    """
    from stretto.cli.demo_load import HIGH, LOW, ROWS, bursty_load

    folder = stage.setup.ladder
    if folder is None:
        raise LeftOut("no --ladder REPO/fashion_gpu was given (see training/README.md)")
    stage.profiled(folder)
    accuracy, name = accuracies(folder), folder.name
    speed = {variant: best_throughput(stored)[0] for variant, stored in profiles(folder).items()}
    fastest, best = max(speed, key=lambda one: speed[one]), max(accuracy, key=lambda one: (accuracy[one], speed[one]))
    seconds, file = stage.setup.ladder_seconds, folder / "sample.npz"
    shares: dict[str, float] = {}
    with stage.served(folder) as server:
        ends = [
            stage.clients.carried(Drive(server.url, name, file, 1.0, version=variant)) for variant in (fastest, best)
        ]
        bursts = bursty_load(*ends)
        stage.row(seen=f"{fastest} carries {ends[0]:.0f} images/s, {best} {ends[1]:.0f}: {bursts}", rows=ROWS)
        for version in ("", *sorted(accuracy, key=lambda one: accuracy[one])):
            drive = Drive(
                *(server.url, name, file, seconds),
                kind=bursts.kind,
                rows=ROWS,
                version=version,
                seed=stage.bench.seed,
            )
            # Warm, as in the demo, and with a burst: memory that nobody has used yet is slow on a virtual machine.
            stage.clients.run(Drive(**{**drive.__dict__, "seconds": min(bursts.period_s, seconds)}))
            seen = stage.clients.run(drive)
            shares[version] = seen.correct_on_time
            known = {} if not version else {"test_accuracy": accuracy[version], "own_images_s": speed[version]}
            stage.row(served_by=version or "Stretto", correct_on_time=seen.correct_on_time, **known, **seen.row())
    ours = shares.pop("")
    single = max(shares, key=lambda one: shares[one])
    gain = 100 * (ours - shares[single])
    offered = (
        f"{bursts} for {bursts.share:.0%} of every {bursts.period_s:g} s, {ROWS} images a request "
        f"({HIGH:.0%} of what {fastest} carries over {LOW:.0%} of what {best} does)"
    )
    what = f"{name}, {offered}: correct and on time over the best single variant ({single}, {shares[single]:.1%})"
    stage.claim(f"{what}, points", "≥ 3", gain, gain >= 3)


def curve(stage: Stage) -> None:
    """Steady loads, from little to nearly all that the fastest variant carries: for Stretto's own choice, for each
    variant alone, and for the same engine without one thing at a time. The limit is the throughput of the fastest
    one's graphs.
    """
    from stretto.cli.demo_load import ROWS

    setup, folder = stage.setup, stage.setup.ladder
    if folder is None:
        raise LeftOut("no --ladder REPO/fashion_gpu was given (see training/README.md)")
    stage.profiled(folder)
    name, file = folder.name, folder / "sample.npz"
    speed = {variant: best_throughput(stored)[0] for variant, stored in profiles(folder).items()}
    fastest = max(speed, key=lambda one: speed[one])

    def climb(server: Started, loads: dict[float, float], without: str = "", version: str = "") -> None:
        for share, rate in loads.items():
            drive = Drive(
                server.url, name, file, setup.curve_seconds, rate, rows=ROWS, version=version, seed=stage.bench.seed
            )
            seen = stage.clients.run(drive)
            wait_for_workers(server, 1)  # what one load left behind is not the next one's
            served_by = version or (f"Stretto without {without}" if without else "Stretto")
            stage.row(
                served_by=served_by,
                load=share,
                offered_images_s=rate * ROWS,
                goodput_images_s=seen.goodput,
                of_limit=seen.goodput / speed[fastest],
                correct_on_time=seen.correct_on_time,
                **seen.row(),
            )

    with stage.served(folder) as server:
        carried = stage.clients.carried(Drive(server.url, name, file, 1.0, version=fastest))
        loads = {share: share * carried / ROWS for share in setup.curve_shares}
        stage.row(seen=f"{fastest} carries {carried:.0f} images/s; its graphs give {speed[fastest]:.0f}")
        for version in ("", *sorted(speed, key=lambda one: -speed[one])):
            climb(server, loads, version=version)
    for without in WITHOUT:
        with environment(WITHOUT_VARIABLE, without), stage.served(folder) as server:
            climb(server, loads, without)
    ahead = ahead_where_carried(stage.bench.rows, list(speed))
    told = ", ".join(f"{points:+.1f} at {share:.0%}" for share, points in ahead.items())
    what = f"{name}, steady loads that some variant alone carries: correct and on time over the best of them ({told})"
    stage.claim(f"{what}, points, the least", "≥ -1", min(ahead.values()), min(ahead.values()) >= -1)
    most = most_right(stage.bench.rows)
    single = max(speed, key=lambda variant: most[variant])
    times = most["Stretto"] / most[single]
    what = f"{name}, steady loads: the most images/s right and on time, {most['Stretto']:.0f}, over those of {single}"
    stage.claim(f"{what} alone, the best of the variants, {most[single]:.0f}", "≥ 1", times, times >= 1)


def ahead_where_carried(rows: Sequence[Mapping[str, Any]], variants: Sequence[str]) -> dict[float, float]:
    """By load, in points of correct and on time: Stretto over the best of the variants that carry it alone. Images are
    drawn anew for each load, and their right answers differ by up to a point for the same variant.
    """
    points = [row for row in rows if row["part"] == "curve" and "load" in row]
    ours = {row["load"]: row["correct_on_time"] for row in points if row["served_by"] == "Stretto"}
    carried = [row for row in points if row["served_by"] in variants and row["on_time_share"] >= HOLDS]
    return {
        load: 100 * (right - max(row["correct_on_time"] for row in carried if row["load"] == load))
        for load, right in ours.items()
        if any(row["load"] == load for row in carried)
    }


def most_right(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Images a second answered right and on time, the most at any load, by who served them."""
    most: dict[str, float] = {}
    for row in rows:
        if row["part"] == "curve" and "load" in row:
            rate = row["offered_images_s"] * row["correct_on_time"]
            most[row["served_by"]] = max(rate, most.get(row["served_by"], 0.0))
    return most

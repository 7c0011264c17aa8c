"""`stretto train`: learn how to deal queries to the instances of an application (edge RL)."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stretto.cli.options import Plot, Seed
from stretto.cli.output import check_plot
from stretto.core.errors import StrettoError
from stretto.training import SYSTEMS_AT_ONCE

if TYPE_CHECKING:
    from stretto.planners.edge_rl.policy import Description, Policy
    from stretto.training.evaluate import Decide
    from stretto.training.run import Options, Progress
    from stretto.training.world import System

# Headings of the help, by the first option below each.
HEADINGS = {
    "what": "Arguments",
    "out": "What is learned on",
    "slot_ms": "What the policy sees and does (kept when it is served)",
    "alpha": "What counts",
    "iterations": "How it learns (γ, λ, ε and σ as published)",
    "seed": "The run",
}
TOLD_EVERY = 10  # iterations, where no terminal shows a line that changes


class TrainHelp(TyperCommand):
    """Lists the many options under headings."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: list[tuple[str, list[tuple[str, str]]]] = []
        for parameter in self.get_params(ctx):
            if parameter.name in HEADINGS:
                groups.append((HEADINGS[parameter.name], []))
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups[-1][1].append(record)
        for title, records in groups:
            with formatter.section(title):
                formatter.write_dl(records)


def train(
    what: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO.toml|EVENTS.jsonl|REPO",
            help="A scenario; what stretto serve --record wrote; or a repository (a folder, zoo:APP), with --load.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where policy, checkpoint and curve go.")],
    load: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Queries to learn from: EVENTS.jsonl, a log (.csv, .npz), a .toml's [load]."),
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(metavar="DEVICE", help="With REPO: its workers, as stretto serve takes them.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=0, max=1024, help="With REPO: so many equal ones; 0: as stretto serve.")
    ] = 0,
    slot_ms: Annotated[float, typer.Option(metavar="MS", min=10, max=60_000, help="Between two decisions.")] = 1000.0,
    buffer: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Queries that an instance holds; further are refused.")
    ] = 15,
    batching: Annotated[bool, typer.Option("--batching", help="Let the policy choose batch sizes too.")] = False,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also a policy for each set of instances that one failure leaves.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Tell the policy the phase of the load; for comparisons.")
    ] = False,
    random_settings: Annotated[
        int, typer.Option(metavar="N", min=0, max=4096, help="Learn on so many random settings instead.")
    ] = 0,
    alpha: Annotated[
        float, typer.Option(metavar="α", min=0, max=1000, help="Weight of a refused query; a late one has 1.")
    ] = 1.0,
    beta: Annotated[
        float, typer.Option(metavar="β", min=0, max=1000, help="Weight of an answer that is right and on time.")
    ] = 1.0,
    violations: Annotated[
        float | None,
        typer.Option(metavar="SHARE", min=1e-5, max=0.5, help="Weigh violations so that this share is met."),
    ] = None,
    most_violations: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", min=1e-5, max=0.5, help="Of the policy that is kept; else --violations, or 0.02."
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Of 16 slots each.")] = 240,
    systems: Annotated[int, typer.Option(metavar="N", min=1, max=65_536, help="Simulated at once.")] = SYSTEMS_AT_ONCE,
    discount: Annotated[float, typer.Option(metavar="γ", min=0, max=1, help="Of the reward of later slots.")] = 0.99,
    gae_lambda: Annotated[float, typer.Option(metavar="λ", min=0, max=1, help="Of generalised advantages.")] = 0.95,
    clip: Annotated[float, typer.Option(metavar="ε", min=0.001, max=1, help="Clipping threshold of PPO.")] = 0.2,
    sigma: Annotated[
        str | None,
        typer.Option(metavar="σ[,σ]", help="Noise; a second number is that of the second half. 0.698 if not taught."),
    ] = None,
    teach_lull: Annotated[
        str, typer.Option(metavar="W,W,…", help="First teach a rule: weights of the instances in lulls.")
    ] = "",
    teach_burst: Annotated[
        str, typer.Option(metavar="W,W,…", help="Its weights in bursts; else accurate instances are filled.")
    ] = "",
    seed: Seed = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="Of PyTorch: cpu or cuda.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")] = False,
    plot: Plot = None,
) -> None:
    """Train a policy that deals queries to model instances, and write it as a file that simulate and serve load.

    \b
    Examples:
      stretto train events.jsonl --out trained
      stretto train zoo:fashion --worker cpu,variant=cnn_s --worker cpu,variant=resnet_m --load day.csv --out trained
      stretto train examples/edge/edge.toml --out trained --plot curve.png
      stretto train examples/edge/edge.toml --out trained --resume --iterations 400
      stretto train examples/edge/edge.toml --out taught --teach-lull 4,4,46,46 --teach-burst 36,36,14,14
    """
    check_plot(plot)
    if find_spec("torch") is None:
        raise StrettoError("training needs PyTorch; install it with: pip install 'stretto[rl]'")
    if random_settings and (full or batching or failures):
        raise StrettoError("--random-settings learns one policy for all; leave --full, --batching and --failures out")
    if teach_burst and not teach_lull:
        raise StrettoError("--teach-burst goes with --teach-lull")
    if teach_lull and (random_settings or batching):
        raise StrettoError(
            "a rule has weights for these instances alone: teach none with --random-settings or --batching"
        )
    from stretto.cli.train_ground import read_ground
    from stretto.planners.edge_rl.file import save_policies
    from stretto.planners.edge_rl.instances import can_batch, instances_of
    from stretto.planners.edge_rl.policy import Description
    from stretto.planners.edge_rl.reward import Weights
    from stretto.sim.switching import switching_of
    from stretto.training.ppo import Recipe
    from stretto.training.run import POLICY, Options
    from stretto.training.settings import after_failures, random_systems
    from stretto.training.teacher import Rule, taught, teacher
    from stretto.training.world import System

    noise = None if sigma is None else _sigma(sigma)
    ground = read_ground(what, load, workers, tuple(worker or ()))
    for warning in ground.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if batching and not can_batch(ground.deployment, instances_of(ground.deployment)):
        raise StrettoError(
            "--batching: no instance takes more than one query at once here (max_batch = 1), so there is no batch size"
            " to choose; give the variants a larger max_batch, with its latencies, or leave --batching out"
        )
    _check_device(device)
    _make_folder(out)
    typer.echo(ground.summary(slot_ms), err=True)
    recipe = Recipe(
        iterations=iterations,
        clip=clip,
        discount=discount,
        trace=gae_lambda,
        violations=violations,
        weights=Weights(refused=alpha, right=beta),
    )
    recipe = recipe if noise is None else replace(recipe, sigma=noise)
    options = Options(
        recipe,
        systems_at_once=systems,
        seed=ground.seed if seed is None else seed,
        device=device,
        most_violations=most_violations,
    )
    encoding = "shared" if random_settings else "joint"
    description = Description(encoding, slot_ms / 1000, sees_phase=full, batching=batching, buffer=buffer)
    whole = System(ground.deployment, switching_of(ground.source) or ground.source, ground.service)
    if random_settings:
        policies = [_trained(random_systems(random_settings, options.seed), description, options, out, resume)]
    else:
        rule = None
        first = options
        if teach_lull:
            rule = teacher(Rule(_weights(teach_lull), _weights(teach_burst)), whole, description.slot_s)
            first = replace(options, recipe=taught(recipe, noise))
        policies = [_trained((whole,), description, first, out, resume, rule)]
        for number, left in enumerate(after_failures(whole) if failures else ()):
            folder = out / f"failure-{number}"
            _make_folder(folder)
            policies.append(_trained((left,), description, options, folder, resume))
    save_policies(out / POLICY, policies)
    typer.echo(f"policy: {out / POLICY}")
    if plot is not None:
        from stretto.report.learning import learning_figure
        from stretto.report.plots import save

        save(learning_figure({ground.deployment.applications[0].name: out}), plot)
        typer.echo(f"plot: {plot}")


def _trained(
    systems: tuple[System, ...],
    description: Description,
    options: Options,
    folder: Path,
    resume: bool,
    rule: Decide | None = None,
) -> Policy:
    from stretto.training.run import CHECKPOINT, Training

    training = Training(systems, description, options, folder, rule)
    if resume and (folder / CHECKPOINT).is_file():
        training.resume()
    policy = training.run(_tell)
    if sys.stderr.isatty():
        typer.echo("", err=True)
    row, most = training.kept(), training.most_violations
    typer.echo(
        f"kept, after {row['slots'] / 1e6:.2f} M slots: {row['overall_goodput']:.2%} right and on time,"
        f" {row['overall_violations']:.2%} late or refused"
    )
    if not training.is_within:
        typer.echo(
            f"warning: over {100 * most:.3g}% may be late or refused. Train longer (--resume with more --iterations),"
            " take a shorter --slot-ms, or ask for less (--most-violations)",
            err=True,
        )
    return policy


def _sigma(given: str) -> tuple[float, float]:
    """The noise of the first half of the iterations, and of the second."""
    try:
        numbers = [float(part) for part in given.split(",")]
    except ValueError:
        numbers = []
    if not (1 <= len(numbers) <= 2 and all(1e-3 <= number <= 10 for number in numbers)):
        raise StrettoError(f"--sigma {given[:40]}: give one number from 0.001 to 10, or two, as 0.25,0.08")
    return numbers[0], numbers[-1]


def _weights(given: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in given.split(",")) if given else ()
    except ValueError:
        raise StrettoError(f"{given}: weights are numbers with commas between them, as 4,4,46,46") from None


def _check_device(device: str) -> None:
    """AssertionError is what a PyTorch without CUDA raises."""
    import torch

    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise StrettoError(
            f"--device {device}: PyTorch cannot compute there; give cpu, or cuda where it has a GPU"
        ) from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StrettoError(f"--out {folder}: the folder cannot be made ({error.strerror})") from None


def _tell(progress: Progress) -> None:
    """One line that changes on a terminal; elsewhere one line now and then."""
    did = progress.did.overall
    line = (
        f"iteration {progress.iteration}/{progress.iterations} · {progress.slots / 1e6:.1f} M slots ·"
        f" goodput {did.goodput:.2%}, violations {did.violations:.2%} with noise ·"
        f" {progress.requests_per_s / 1e6:.2f} M requests/s simulated · {progress.seconds:.0f} s"
    )
    if sys.stderr.isatty():
        typer.echo(f"\r{line}\x1b[K", err=True, nl=False)
    elif progress.iteration % TOLD_EVERY == 0 or progress.iteration == progress.iterations:
        typer.echo(line, err=True)

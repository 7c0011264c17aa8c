"""`stretto train`: learn how to deal queries to the instances of a scenario (edge RL)."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stretto.cli.options import Plot, ScenarioFile, Seed
from stretto.cli.output import check_plot
from stretto.core.errors import StrettoError
from stretto.training import SYSTEMS_AT_ONCE

if TYPE_CHECKING:
    from stretto.planners.edge_rl.policy import Description, Policy
    from stretto.training.evaluate import Decide
    from stretto.training.run import Options, Progress
    from stretto.training.world import System

TOLD_EVERY = 10  # iterations, where no terminal shows a line that changes


def train(
    scenario: ScenarioFile,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where policy, checkpoint and curve go.")],
    full: Annotated[
        bool, typer.Option("--full", help="Tell the policy the phase of the load; for comparisons.")
    ] = False,
    batching: Annotated[bool, typer.Option("--batching", help="Let the policy choose batch sizes too.")] = False,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also a policy for each set of instances that one failure leaves.")
    ] = False,
    random_settings: Annotated[
        int, typer.Option(metavar="N", min=0, max=4096, help="Learn on so many random settings instead.")
    ] = 0,
    slot_ms: Annotated[float, typer.Option(metavar="MS", min=10, max=60_000, help="Between two decisions.")] = 1000.0,
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
    teach_lull: Annotated[
        str, typer.Option(metavar="W,W,…", help="First teach a rule: weights of the instances in lulls.")
    ] = "",
    teach_burst: Annotated[
        str, typer.Option(metavar="W,W,…", help="Its weights in bursts; else accurate instances are filled.")
    ] = "",
    iterations: Annotated[int, typer.Option(metavar="N", min=1, max=100_000)] = 240,
    systems: Annotated[int, typer.Option(metavar="N", min=1, max=65_536, help="Simulated at once.")] = SYSTEMS_AT_ONCE,
    seed: Seed = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="Of PyTorch: cpu or cuda.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")] = False,
    plot: Plot = None,
) -> None:
    """Train a policy that deals queries to model instances, and write it as a file that simulate and serve load.

    \b
    Examples:
      stretto train examples/edge/edge.toml --out trained
      stretto train examples/edge/edge.toml --out trained --resume --iterations 200 --plot curve.png
      stretto train examples/edge/edge.toml --out taught --teach-lull 4,4,46,46 --teach-burst 36,36,14,14
      stretto train examples/edge/edge.toml --out general --random-settings 512 --slot-ms 250
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
    from stretto.cli.scenario.read import read_scenario
    from stretto.planners.edge_rl.file import save_policies
    from stretto.planners.edge_rl.instances import can_batch, instances_of
    from stretto.planners.edge_rl.policy import Description
    from stretto.sim.switching import switching_of
    from stretto.training.ppo import Recipe
    from stretto.training.run import POLICY, Options
    from stretto.training.settings import after_failures, random_systems
    from stretto.training.teacher import Rule, taught, teacher
    from stretto.training.world import System

    described = read_scenario(scenario)
    if len(described.deployment.applications) != 1:
        raise StrettoError("a policy is trained for one application; this scenario has several")
    if batching and not can_batch(described.deployment, instances_of(described.deployment)):
        raise StrettoError(
            "--batching: no instance takes more than one query at once here (max_batch = 1), so there is no batch size"
            " to choose; give the variants a larger max_batch, with its latencies, or leave --batching out"
        )
    _check_device(device)
    _make_folder(out)
    options = Options(
        Recipe(iterations=iterations, violations=violations),
        systems_at_once=systems,
        seed=described.seed if seed is None else seed,
        device=device,
        most_violations=most_violations,
    )
    encoding = "shared" if random_settings else "joint"
    description = Description(encoding, slot_ms / 1000, sees_phase=full, batching=batching)
    whole = System(described.deployment, switching_of(described.source), described.service)
    if random_settings:
        policies = [_trained(random_systems(random_settings, options.seed), description, options, out, resume)]
    else:
        rule = None
        first = options
        if teach_lull:
            rule = teacher(Rule(_weights(teach_lull), _weights(teach_burst)), whole, description.slot_s)
            first = replace(options, recipe=taught(options.recipe))
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

        save(learning_figure({described.name: out}), plot)
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
    return policy


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

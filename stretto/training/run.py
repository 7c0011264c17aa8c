"""A training from its start, or from where it stopped, to a file of policies: progress, checkpoints and curves.

A folder holds `checkpoint.safetensors`, `policy.safetensors` and in the end `curve.json`. The policy that is kept is
the one with most goodput, on the validation's seeds that nothing else uses, among those within the violations asked; a
training that is stopped leaves it there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.core.errors import StrettoError
from stretto.planners.edge_rl.file import read_arrays, save_policies, write_arrays
from stretto.planners.edge_rl.policy import Description, Policy
from stretto.training import SYSTEMS_AT_ONCE
from stretto.training.evaluate import Decide, Evaluation, Merit, evaluate, merit, violations_error
from stretto.training.ppo import Learner, Recipe
from stretto.training.world import System, World

CHECKPOINT, CURVE, POLICY = "checkpoint.safetensors", "curve.json", "policy.safetensors"
VALIDATION_SEED = 7_000_001
TAIL = 0.02  # violations that a P98 allows


@dataclass(frozen=True)
class Options:
    """What is trained, and how long."""

    recipe: Recipe = field(default_factory=Recipe)
    systems_at_once: int = SYSTEMS_AT_ONCE
    seed: int = 1
    device: str = "cpu"
    validate_every: int = 5  # iterations
    validation_slots: int = 60_000
    most_violations: float | None = None  # of the policy that is kept; None: the recipe's, or what a P98 allows


@dataclass(frozen=True)
class Progress:
    """What a progress line says."""

    iteration: int
    iterations: int
    slots: int
    did: Evaluation  # with noise
    requests_per_s: float  # simulated, of the time spent in the simulator
    seconds: float


class Training:
    """One policy in the making."""

    def __init__(
        self,
        systems: Sequence[System],
        description: Description,
        options: Options,
        folder: Path,
        teacher: Decide | None = None,
    ) -> None:
        self.options, self.folder = options, folder
        if torch.device(options.device).type == "cpu":
            torch.set_num_threads(1)  # networks this small only wait for further threads, which take all cores for it
        if description.encoding == "joint":
            description = systems[0].description(description)
        copies = max(1, options.systems_at_once // len(systems))
        self.world = TimedWorld(systems, description, copies, options.seed)
        check_copies = max(1, min(copies, 512 // len(systems)))
        self._check = World(systems, description, check_copies, VALIDATION_SEED)
        self.learner = Learner(description, options.recipe, options.seed, options.device, teacher)
        self.curve: list[dict[str, Any]] = []
        self.seconds = 0.0
        self._best: tuple[Merit, Policy] | None = None

    def resume(self) -> None:
        """From the folder's checkpoint."""
        arrays, metadata = read_arrays(self.folder / CHECKPOINT)
        checkpoint = json.loads(metadata.get("training", "{}"))
        if checkpoint.get("description") != _plain(self.learner.description) or "merit" not in checkpoint:
            raise StrettoError(f"{self.folder / CHECKPOINT} is of another training; give another folder")
        if checkpoint.get("taught", 0) != self.options.recipe.taught:
            raise StrettoError(
                f"{self.folder / CHECKPOINT}: give the rule that was taught again, and none where none was"
            )
        learner = self.learner
        for name, module in learner.modules.items():
            state = {key: torch.from_numpy(arrays[f"{name}.{key}"].copy()) for key in module.state_dict()}
            module.load_state_dict(state)
        learner.iteration, self.seconds, self.curve = (
            checkpoint["iteration"],
            checkpoint["seconds"],
            checkpoint["curve"],
        )
        if self.options.recipe.violations is not None:  # they followed the violations; else they are as asked
            learner.weights = replace(learner.weights, **checkpoint["weights"])
        parameters = learner.adam.param_groups[0]["params"]
        for number, parameter in enumerate(parameters):
            saved_moments = {
                key: torch.from_numpy(arrays[f"adam.{number}.{key}"].copy()) for key in ("exp_avg", "exp_avg_sq")
            }
            moments = {key: value.to(learner.device) for key, value in saved_moments.items()}
            learner.adam.state[parameter] = {"step": torch.tensor(float(checkpoint["steps"])), **moments}
        best = [arrays[f"best.{number}"] for number in range(checkpoint["best_layers"])]
        if best:
            pairs = tuple(zip(best[::2], best[1::2], strict=True))
            is_within, value = checkpoint["merit"]
            described = replace(learner.description, trained=checkpoint["best_trained"])
            self._best = ((is_within, value), Policy(described, pairs))

    def run(self, progress: Callable[[Progress], None] | None = None) -> Policy:
        """To the end of its recipe."""
        learner, recipe = self.learner, self.options.recipe
        seen = self.world.restart(self.options.seed * 1000 + learner.iteration)
        began = time.perf_counter() - self.seconds
        while learner.iteration < recipe.iterations:
            seen, did = learner.iterate(self.world, seen)
            is_last = learner.iteration == recipe.iterations
            self.seconds = time.perf_counter() - began
            if is_last or learner.iteration % self.options.validate_every == 0:
                self._validate()
                self._save_checkpoint()
            if progress is not None:
                slots = learner.iteration * recipe.slots * self.world.count
                progress(
                    Progress(learner.iteration, recipe.iterations, slots, did, self.world.requests_per_s, self.seconds)
                )
        assert self._best is not None
        policy = self._best[1]
        (self.folder / CURVE).write_text(json.dumps(self.curve, indent=1) + "\n")
        return policy

    @property
    def most_violations(self) -> float:
        """Share of late or refused queries below which the policy that is kept should stay."""
        return self.options.most_violations or self.options.recipe.violations or TAIL

    @property
    def is_within(self) -> bool:
        """Whether the policy that is kept stays below it."""
        return self._best is not None and self._best[0][0]

    def kept(self) -> dict[str, Any]:
        """The validation of the policy that is kept, as a row of the curve."""
        assert self._best is not None
        slots = self._best[1].description.trained["slots"]
        return next(row for row in self.curve if row["slots"] == slots)

    def _validate(self) -> None:
        learner = self.learner
        slots = learner.iteration * self.options.recipe.slots * self.world.count
        policy = learner.policy(slots=slots, seconds=round(self.seconds, 1), seed=self.options.seed)
        figures, counts = evaluate(self._check, policy.decide, self.options.validation_slots, VALIDATION_SEED)
        error = violations_error(counts)
        row = {"slots": slots, "seconds": round(self.seconds, 1), "weight": round(learner.weights.late, 3)}
        parts = asdict(figures) if self._check.has_phases else {"overall": asdict(figures.overall)}
        for name, part in parts.items():
            row |= {f"{name}_{key}": round(part[key], 6) for key in ("goodput", "violations", "heavy")}
        row["overall_violations_error"] = round(error, 6)
        if policy.description.batching:
            row |= _mean_batches(self._check, policy)
        self.curve.append(row)
        reached = merit(figures.overall, error, self.most_violations)
        if self._best is None or reached > self._best[0]:
            self._best = (reached, policy)
            save_policies(self.folder / POLICY, [policy])

    def _save_checkpoint(self) -> None:
        learner = self.learner
        arrays = {
            f"{name}.{key}": value.detach().cpu().numpy()
            for name, module in learner.modules.items()
            for key, value in module.state_dict().items()
        }
        states = [learner.adam.state[parameter] for parameter in learner.adam.param_groups[0]["params"]]
        for number, state in enumerate(states):
            arrays |= {f"adam.{number}.{key}": state[key].cpu().numpy() for key in ("exp_avg", "exp_avg_sq")}
        best = [] if self._best is None else [array for pair in self._best[1].layers for array in pair]
        arrays |= {f"best.{number}": array for number, array in enumerate(best)}
        checkpoint = {
            "description": _plain(learner.description),
            "iteration": learner.iteration,
            "taught": learner.recipe.taught,
            "seconds": self.seconds,
            "steps": float(states[0]["step"]),
            "weights": asdict(learner.weights),
            "best_layers": len(best),
            "best_trained": {} if self._best is None else self._best[1].description.trained,
            "merit": (False, 0.0) if self._best is None else self._best[0],
            "curve": self.curve,
        }
        write_arrays(self.folder / CHECKPOINT, arrays, {"training": json.dumps(checkpoint)})


class TimedWorld(World):
    """Knows how long its steps took."""

    def __init__(self, systems: Sequence[System], description: Description, copies: int, seed: int) -> None:
        super().__init__(systems, description, copies, seed)
        self.step_s = 0.0

    def step(self, *given: Any) -> Any:
        began = time.perf_counter()
        result = super().step(*given)
        self.step_s += time.perf_counter() - began
        return result

    @property
    def requests_per_s(self) -> float:
        return self.requests / max(self.step_s, 1e-9)


def _plain(description: Description) -> Any:
    return json.loads(json.dumps(asdict(description)))


def _mean_batches(world: World, policy: Policy) -> dict[str, float]:
    """Mean smallest and largest batch by model and phase (figure 5), over a short run."""
    from stretto.planners.edge_rl.instances import BATCHES

    seen = world.restart(VALIDATION_SEED + 1)
    sums: dict[str, list[float]] = {}
    for _ in range(40):
        shares, batches = policy.decide(seen, world.setting)
        assert batches is not None
        seen, slot = world.step(shares, batches)
        sizes = np.array(BATCHES)[batches]  # [system, model, smallest and largest]
        for phase, when in enumerate(("normal", "bursty")):
            for model in range(sizes.shape[1]):
                chosen = sizes[slot.phase == phase, model]
                for column, which in enumerate(("least", "most")):
                    sums.setdefault(f"{when}_model{model}_{which}", []).extend(chosen[:, column].tolist())
    return {name: round(float(np.mean(values)), 3) if values else 0.0 for name, values in sums.items()}

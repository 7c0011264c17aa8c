"""Proximal policy optimisation with generalised advantages (edge RL, algorithm 1), in PyTorch.

It differs from the paper where that learns faster. Advantages are divided by how large they usually are in what is seen
(another network learns that): bursts are rare and their advantages a hundred times those of lulls, which would drown.
The critic is told the phase of the load also where the policy is not: it judges what was done, and is not used later.
Its discount, its λ, its clipping threshold and its noise σ are the paper's unless a recipe says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributions import Categorical

from stretto.planners.edge_rl.encoding import BEGINNING, PHASE_FEATURES, Situation
from stretto.planners.edge_rl.instances import BATCHES
from stretto.planners.edge_rl.policy import HIDDEN, Description, Policy
from stretto.planners.edge_rl.reward import Weights, shortfalls
from stretto.training.evaluate import Decide, Evaluation, evaluation_of
from stretto.training.world import World

LEAST_ERROR = 1e-3
LARGEST_GAIN = 10.0  # advantages, in usual errors
LEAST_SHARE = 1e-3  # of a teacher's weights, whose logarithm is learned


@dataclass(frozen=True)
class Recipe:
    """How it learns. Pairs are the value of the first half of the iterations, and the one that it then falls to."""

    iterations: int = 240
    slots: int = 16  # of an iteration, in each system
    epochs: int = 4
    minibatch: int = 4096
    step: tuple[float, float] = (2e-3, 2e-4)  # of Adam
    sigma: tuple[float, float] = (0.698, 0.698)
    clip: float = 0.2
    discount: float = 0.99
    trace: float = 0.95  # λ of the advantages
    scale: float = 0.1  # of rewards, so that values are of moderate size
    violations: float | None = None  # reward weights follow this share of violations; None: they stay as they are
    weights: Weights = field(default_factory=Weights)
    taught: int = 0  # iterations in which a teacher acts, whom the policy learns to follow while the critic learns


@dataclass(eq=False)
class Rollout:
    """What was seen, done and gained, by slot and system."""

    features: torch.Tensor
    logs: torch.Tensor  # of the weights that were drawn
    batches: torch.Tensor | None
    rewards: NDArray[np.float64]
    last: torch.Tensor  # features after the last slot
    hidden: torch.Tensor  # of the load, by slot (one more than the others) and system: what the critic alone is told
    taught: torch.Tensor | None = None  # logarithms of a teacher's weights


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers of tanh; the last layer starts small, so that all weights are nearly equal at first."""
    layers: list[nn.Module] = []
    for size in HIDDEN:
        layers += [nn.Linear(inputs, size), nn.Tanh()]
        inputs = size
    last = nn.Linear(inputs, outputs)
    nn.init.uniform_(last.weight, -0.01, 0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


class Learner:
    """The actor and the critic of one policy, and how they learn."""

    def __init__(
        self,
        description: Description,
        recipe: Recipe,
        seed: int = 1,
        device: str = "cpu",
        teacher: Decide | None = None,
    ) -> None:
        torch.manual_seed(seed)
        self.teacher = teacher
        self.description, self.recipe, self.device = description, recipe, torch.device(device)
        self.is_shared = description.encoding == "shared"
        self.actor = network(description.inputs, description.outputs).to(self.device)
        self.critic = network(description.inputs + PHASE_FEATURES, 1).to(self.device)
        self.usual = network(description.inputs, 1).to(self.device)  # logarithm of how far the critic is usually off
        self.modules = {"actor": self.actor, "critic": self.critic, "usual": self.usual}
        self.parameters = [each for module in self.modules.values() for each in module.parameters()]
        self.adam = torch.optim.Adam(self.parameters, lr=recipe.step[0])
        self.noise = torch.Generator(self.device).manual_seed(seed + 1)
        self.weights = recipe.weights
        self.iteration = 0

    def value_at(self, pair: tuple[float, float]) -> float:
        """Of a recipe's pair, at this iteration."""
        share = min(1.0, max(0.0, 2.0 * self.iteration / self.recipe.iterations - 1.0))
        if self.recipe.taught > 0:  # what was taught is lost in large steps
            share = float(self.iteration >= self.recipe.taught)
        return pair[0] + (pair[1] - pair[0]) * share

    def value(self, features: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """What the critic expects; it is told what the policy must do without."""
        if self.is_shared:
            hidden = hidden[..., None, :].expand(*features.shape[:-1], PHASE_FEATURES)
        return self._joined(self.critic(torch.cat((features, hidden), dim=-1)))

    def usual_error(self, features: torch.Tensor) -> torch.Tensor:
        """The logarithm of how far the critic is usually off, in what the policy sees."""
        return self._joined(self.usual(features))

    def _joined(self, given: torch.Tensor) -> torch.Tensor:
        return given.mean(dim=-2)[..., 0] if self.is_shared else given[..., 0]

    def outputs(self, features: torch.Tensor, count: int) -> tuple[torch.Tensor, Categorical | None]:
        """The means of the weights' logarithms, and the law of the batch sizes by model."""
        given = self.actor(features)
        if self.is_shared:
            return given[..., 0] + features[..., BEGINNING], None
        if not self.description.batching:
            return given, None
        by_model = given[..., count:].reshape(*given.shape[:-1], -1, len(BATCHES))
        return given[..., :count], Categorical(logits=by_model)

    def log_chance(self, features: torch.Tensor, logs: torch.Tensor, batches: torch.Tensor | None) -> torch.Tensor:
        """Logarithm of equation 9, but for what does not depend on the network; and of the batch sizes' chance."""
        means, law = self.outputs(features, logs.shape[-1])
        q = logs - means
        q = q - q.mean(dim=-1, keepdim=True)
        chance = -(q**2).sum(dim=-1) / (2 * self.value_at(self.recipe.sigma) ** 2)
        return chance if law is None or batches is None else chance + law.log_prob(batches).sum(dim=-1)

    def collect(self, world: World, seen: Situation) -> tuple[Rollout, Situation, Evaluation]:
        """Let the policy act, with noise, for as many slots as an iteration has."""
        policy, sigma = self.policy(), self.value_at(self.recipe.sigma)
        teacher = self.teacher if self.iteration < self.recipe.taught else None
        all_features, all_logs, all_batches, all_taught, rewards = [], [], [], [], []
        hidden = [world.hidden()]
        counts: Any = 0
        for _ in range(self.recipe.slots):
            features = torch.from_numpy(policy.encode(seen, world.setting)).to(self.device)
            with torch.no_grad():
                means, law = self.outputs(features, len(world.instances))
                if teacher is not None:
                    means = self._log_shares(teacher(seen, world.setting)[0])
                    all_taught.append(means)
                drawn = means + sigma * torch.randn(means.shape, generator=self.noise, device=self.device)
                logs = torch.log_softmax(drawn, dim=-1)
                batches = None if law is None else law.sample()
            shares = np.exp(logs.double().cpu().numpy())
            shares /= shares.sum(axis=1, keepdims=True)
            seen, slot = world.step(shares, None if batches is None else batches.cpu().numpy())
            by_end = slot.counts.sum(axis=1)
            rewards.append(shortfalls(by_end, world.accuracy, self.weights, slot.arrivals))
            counts = counts + slot.counts
            hidden.append(world.hidden())
            all_features.append(features)
            all_logs.append(logs)
            if batches is not None:
                all_batches.append(batches)
        last = torch.from_numpy(policy.encode(seen, world.setting)).to(self.device)
        rollout = Rollout(
            torch.stack(all_features),
            torch.stack(all_logs),
            torch.stack(all_batches) if all_batches else None,
            np.stack(rewards) * self.recipe.scale / world.slot_s,
            last,
            torch.from_numpy(np.stack(hidden)).to(self.device),
            torch.stack(all_taught) if all_taught else None,
        )
        return rollout, seen, evaluation_of(counts, world.accuracy, world.heavy)

    def _log_shares(self, shares: NDArray[np.float64]) -> torch.Tensor:
        logs = torch.from_numpy(np.log(np.maximum(shares, LEAST_SHARE))).float().to(self.device)
        return logs - logs.mean(dim=-1, keepdim=True)

    def advantages(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Generalised advantages (equation 11, with the discount that it lacks), and what the critic should say."""
        with torch.no_grad():
            seen = torch.cat((rollout.features, rollout.last[None]))
            all_values = torch.stack([self.value(*pair) for pair in zip(seen, rollout.hidden, strict=True)])
            values, after = all_values[:-1], all_values[1:]
        rewards = torch.from_numpy(rollout.rewards).float().to(self.device)
        errors = rewards + self.recipe.discount * after - values
        advantages = torch.zeros_like(errors)
        ahead = torch.zeros_like(errors[0])
        for place in range(len(errors) - 1, -1, -1):
            ahead = errors[place] + self.recipe.discount * self.recipe.trace * ahead
            advantages[place] = ahead
        return advantages, values + advantages

    def learn(self, rollout: Rollout) -> None:
        """Some epochs over a rollout: the clipped objective (equation 10), and the critic's squared error."""
        recipe = self.recipe
        advantages, targets = (each.flatten() for each in self.advantages(rollout))
        features, logs, hidden = (each.flatten(0, 1) for each in (rollout.features, rollout.logs, rollout.hidden[:-1]))
        batches, taught = (None if each is None else each.flatten(0, 1) for each in (rollout.batches, rollout.taught))
        for group in self.adam.param_groups:
            group["lr"] = self.value_at(recipe.step)
        with torch.no_grad():
            parts = torch.arange(len(features), device=self.device).split(recipe.minibatch)
            before = torch.cat(
                [self.log_chance(features[p], logs[p], None if batches is None else batches[p]) for p in parts]
            )
        for _ in range(recipe.epochs):
            order = torch.randperm(len(features), generator=self.noise, device=self.device)
            for part in order.split(recipe.minibatch):
                chosen = None if batches is None else batches[part]
                ratio = (self.log_chance(features[part], logs[part], chosen) - before[part]).exp()
                value, usual = self.value(features[part], hidden[part]), self.usual_error(features[part])
                gain = (advantages[part] / (usual.detach().exp() + LEAST_ERROR)).clamp(-LARGEST_GAIN, LARGEST_GAIN)
                clipped = ratio.clamp(1 - recipe.clip, 1 + recipe.clip)
                error = value - targets[part]
                wrong = (error.detach().abs() + LEAST_ERROR).log()
                critic_loss = (error**2).mean() + ((usual - wrong) ** 2).mean()
                objective = torch.minimum(ratio * gain, clipped * gain).mean()
                if taught is not None:
                    means, _ = self.outputs(features[part], taught.shape[-1])
                    objective = -((means - taught[part]) ** 2).mean()
                loss = -objective + 0.5 * critic_loss
                self.adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, 1.0)
                self.adam.step()

    def iterate(self, world: World, seen: Situation) -> tuple[Situation, Evaluation]:
        """Act and learn once; also what the policy did while it acted."""
        rollout, seen, did = self.collect(world, seen)
        self.learn(rollout)
        if self.recipe.violations is not None:
            self.weights = self.weights.adjusted(did.overall.violations, self.recipe.violations)
        self.iteration += 1
        return seen, did

    def policy(self, **trained: float | str) -> Policy:
        """The actor as it is, for NumPy."""
        linear = [layer for layer in self.actor if isinstance(layer, nn.Linear)]
        layers = tuple(
            (each.weight.detach().cpu().numpy().copy(), each.bias.detach().cpu().numpy().copy()) for each in linear
        )
        described = Description(**{**vars(self.description), "trained": dict(trained)})
        return Policy(described, layers)

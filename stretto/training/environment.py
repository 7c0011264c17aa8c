"""The world as a `gymnasium.vector.VectorEnv`: thousands of systems, arrays only, reset in the same step.

An action holds one number for each instance, whose softmax are the weights of a slot; where instances batch, one more
for each model, which of BATCHES it takes.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from stretto.planners.edge_rl.encoding import Situation
from stretto.planners.edge_rl.instances import BATCHES
from stretto.planners.edge_rl.policy import Policy, softmax
from stretto.planners.edge_rl.reward import Weights, rewards, shortfalls
from stretto.training.world import World

LARGEST_ACTION = 10.0


class EdgeEnvironment(VectorEnv):  # type: ignore[misc]
    """`policy` says how things are seen; its network is not asked. `less_chance` takes what chance arrivals add from
    the reward (see `shortfalls`). Without `episode_slots` an episode has no end.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        world: World,
        policy: Policy,
        *,
        weights: Weights | None = None,
        less_chance: bool = False,
        episode_slots: int | None = None,
    ) -> None:
        self.world, self._policy = world, policy
        self._weights, self._less_chance, self._episode_slots = weights or Weights(), less_chance, episode_slots
        self.num_envs = world.count
        self._instances = len(world.instances)
        models = len(set(world.description.models)) if world.description.batching else 0
        first = policy.encode(world.restart(1), world.setting)
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, first.shape[1:], np.float32)
        size = (self._instances + models,)
        self.single_action_space = gymnasium.spaces.Box(-LARGEST_ACTION, LARGEST_ACTION, size, np.float32)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._slots = 0
        self._seed = 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        self._seed = self._seed + 1 if seed is None else seed
        return self._restarted(), {}

    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        shares = softmax(actions[:, : self._instances].astype(np.float64))
        batches = None
        if self.world.description.batching:
            batches = np.clip(np.rint(actions[:, self._instances :]), 0, len(BATCHES) - 1).astype(np.int64)
        seen, slot = self.world.step(shares, batches)
        counts = slot.counts.sum(axis=1)
        if self._less_chance:
            gained = shortfalls(counts, self.world.accuracy, self._weights, slot.arrivals)
        else:
            gained = rewards(counts, self.world.accuracy, self._weights)
        self._slots += 1
        is_over = self._episode_slots is not None and self._slots >= self._episode_slots
        observations, infos = self._encoded(seen), {}
        if is_over:  # all systems keep the same time, so their episodes end together
            infos = {"final_obs": observations, "_final_obs": np.ones(self.num_envs, np.bool_)}
            self._seed += 1
            observations = self._restarted()
        ended = np.zeros(self.num_envs, np.bool_)
        return observations, gained, ended, np.full(self.num_envs, is_over), infos

    def _restarted(self) -> NDArray[np.float32]:
        self._slots = 0
        return self._encoded(self.world.restart(self._seed))

    def _encoded(self, seen: Situation) -> NDArray[np.float32]:
        return self._policy.encode(seen, self.world.setting)

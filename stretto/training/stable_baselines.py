"""The reference trainer: PPO of stable-baselines3, through an adapter of its vector environment to ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from stretto.planners.edge_rl.policy import HIDDEN, Description, Policy
from stretto.training.environment import EdgeEnvironment
from stretto.training.ppo import Recipe


class Adapter(VecEnv):  # type: ignore[misc]
    """One list of empty infos serves every step: its trainer looks at each of them, and that is what limits it."""

    def __init__(self, environment: EdgeEnvironment, scale: float = 1.0) -> None:
        self._environment, self._scale = environment, scale
        self._infos: list[dict[str, Any]] = [{} for _ in range(environment.num_envs)]
        super().__init__(environment.num_envs, environment.single_observation_space, environment.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        return self._environment.reset()[0]

    def step_async(self, actions: NDArray[np.float32]) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        seen, gained, ended, cut, infos = self._environment.step(self._actions)
        if "final_obs" in infos:
            final_infos = [{"terminal_observation": last, "TimeLimit.truncated": True} for last in infos["final_obs"]]
            return seen, (gained * self._scale).astype(np.float32), ended | cut, final_infos
        return seen, (gained * self._scale).astype(np.float32), ended, self._infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self._environment, attr_name, None)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("systems of one environment have no attributes of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **rest: Any) -> list[Any]:
        raise NotImplementedError("systems of one environment have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def train_by_stable_baselines(
    environment: EdgeEnvironment, recipe: Recipe, seed: int = 1, device: str = "cpu"
) -> Policy:
    """A policy over the joint encoding, without batching; with constant noise, as published."""
    first_sigma, _ = recipe.sigma
    model = PPO(
        "MlpPolicy",
        Adapter(environment, recipe.scale / environment.world.slot_s),
        learning_rate=lambda left: recipe.step[1] + (recipe.step[0] - recipe.step[1]) * left,
        n_steps=recipe.slots,
        batch_size=recipe.minibatch,
        n_epochs=recipe.epochs,
        gamma=recipe.discount,
        gae_lambda=recipe.trace,
        clip_range=recipe.clip,
        policy_kwargs={
            "net_arch": {"pi": list(HIDDEN), "vf": list(HIDDEN)},
            "activation_fn": nn.Tanh,
            "log_std_init": float(np.log(first_sigma)),
        },
        seed=seed,
        device=device,
    )
    model.learn(recipe.iterations * recipe.slots * environment.num_envs)
    return policy_of(model.policy, environment.world.description)


def policy_of(trained: Any, description: Description) -> Policy:
    """The actor of a stable-baselines3 policy, for NumPy."""
    linear: Sequence[Any] = [each for each in trained.mlp_extractor.policy_net if isinstance(each, nn.Linear)]
    layers = [(each.weight, each.bias) for each in (*linear, trained.action_net)]
    return Policy(
        description, tuple((w.detach().cpu().numpy().copy(), b.detach().cpu().numpy().copy()) for w, b in layers)
    )

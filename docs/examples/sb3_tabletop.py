"""Train Stable-Baselines3's PPO on the tabletop's state variant: pip install stable-baselines3.

python docs/examples/sb3_tabletop.py [seed] [control steps]
"""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

import embodied_rl_sims.gymnasium_tasks as tasks

TASK = {"family": "press", "observations": "state"}


def measure_success(model: PPO, episodes: int) -> float:
    """Return the share of episodes that reach their goal, which is the mean return with `reward="success"`."""
    environments = make_vec_env(tasks.ID, 8, seed=1_000_000, env_kwargs=TASK)
    mean, _ = evaluate_policy(model, environments, episodes, deterministic=True)
    return float(mean)


def main(seed: int = 0, steps: int = 200_000) -> None:
    """Train on the change of progress, and print success before and after."""
    environments = make_vec_env(tasks.ID, 8, seed=seed, env_kwargs=TASK | {"reward": "progress"})
    model = PPO("MlpPolicy", environments, n_steps=256, batch_size=256, gamma=0.98, seed=seed, device="cpu")
    before = measure_success(model, 200)
    model.learn(steps)
    print(f"seed {seed}, {steps} control steps: {before:.1%} before, {measure_success(model, 200):.1%} after")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

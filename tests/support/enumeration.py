"""The exact policy gradient of a small problem, by enumeration of all its episodes."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

STATES, START, GOAL, HORIZON = 9, 3, 8, 8
GAMMA = 61 / 64
"""A number that float32 holds exactly, because columns of a rollout do."""
RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0, 0.5, (STATES, 2))
WRONG = RANDOM.uniform(0, 1, STATES)  # a critic that knows nothing


@dataclass(frozen=True)
class Path:
    """One episode: states (one more than actions), rewards, whether the goal ended it, and its probability."""

    states: tuple[int, ...]
    actions: tuple[int, ...]
    reward: np.ndarray
    terminated: bool
    probability: float


def policy(state: int) -> np.ndarray:
    weights = np.exp(LOGITS[state] - LOGITS[state].max())
    return weights / weights.sum()


def walk(choices: tuple[int, ...], start: int = START) -> Path:
    states, probability = [start], 1.0
    for action in choices:
        probability *= policy(states[-1])[action]
        states.append(min(STATES - 1, states[-1] + 1) if action else max(0, states[-1] - 1))
        if states[-1] == GOAL:
            break
    done, taken = states[-1] == GOAL, len(states) - 1
    reward = np.array([float(state == GOAL) for state in states[1:]])
    return Path(tuple(states), choices[:taken], reward, done, probability)


def enumerate_paths(start: int = START, horizon: int = HORIZON) -> Iterator[Path]:
    found = {path.actions: path for path in (walk(each, start) for each in itertools.product(range(2), repeat=horizon))}
    yield from found.values()


def gradient(shape: Callable[[Path], np.ndarray], start: int = START, horizon: int = HORIZON) -> np.ndarray:
    """The gradient of the expected discounted return in the logits.

    `shape` returns what is added to the reward of each decision; one number more is added to the value of what follows
    the last decision, which is 0 otherwise.
    """
    total = np.zeros_like(LOGITS)
    for path in enumerate_paths(start, horizon):
        added, taken = shape(path), len(path.actions)
        reward, ahead = path.reward + added[:taken], float(added[taken:].sum())
        for t in reversed(range(taken)):
            ahead = reward[t] + GAMMA * ahead
            score = -policy(path.states[t])
            score[path.actions[t]] += 1
            total[path.states[t]] += path.probability * GAMMA**t * score * ahead
    return total


TRUE = gradient(lambda path: np.zeros(len(path.actions)))


def error(shape: Callable[[Path], np.ndarray]) -> float:
    return float(np.abs(gradient(shape) - TRUE).max())

"""The configurations of the commands `critic train`, `critic eval`, `critic probe` and `critic serve`."""

from dataclasses import dataclass, field
from typing import Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text
from embodied_rl.schema.commands import LAST_SEED
from embodied_rl.schema.nodes import (
    MOST_EPISODES,
    RewardNode,
    SimChange,
    SimNode,
)


@dataclass(frozen=True)
class CriticTrainConfig:
    sim: SimNode
    """The simulator whose operators and policy act, and which says how far all goals of its scenes have come."""
    dataset: FilePath | None = None
    """Or a LeRobotDataset to learn from, without a simulator's truth: progress is guessed from time."""
    policy: FilePath = "asset:tabletop_base.safetensors"
    """Whose perception the critic looks with, and who explores: a policy file, a run folder, or asset:<name>."""
    episodes: int = at_least(10, 3900, at_most=MOST_EPISODES)
    """Episodes to learn from."""
    held_out: int = at_least(120, 900, at_most=MOST_EPISODES)
    """Episodes of other scenes that it is measured on; of a dataset it is every tenth. Of fewer than 120, even a critic
    without a fault would not pass the gate."""
    steps: int = at_least(1, 6000, at_most=1_000_000)
    """Of the optimiser."""
    threshold: float = at_least(0.0, 0.95, at_most=1.0)
    """From which probability on "done" counts as said."""
    processes: int = at_least(1, 2, at_most=64)
    """How many gather episodes at once; they change how a policy's actions are rounded."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes the episodes and every random choice."""
    out: FilePath = "critic.safetensors"
    """File that is written."""


@dataclass(frozen=True)
class CriticEvalConfig:
    reward: RewardNode
    """The scorer that is examined, and its limits; `embodied-rl list rewards` shows scorers."""
    runs: tuple[FilePath, ...] = ()
    """Run folders or policy files whose policies act, exploring, in fresh episodes; given as plain words, too."""
    dataset: FilePath | None = None
    """Or a LeRobotDataset whose frames are judged: nobody knows their truth, so that less can be measured."""
    sim: SimChange = field(default_factory=SimChange)
    """Or a simulator whose operators act, with and without faults; beside runs, what is other than in them."""
    episodes: int = at_least(2, 200, at_most=MOST_EPISODES)
    """How many are judged."""
    others: int = at_least(0, 2)
    """Other instructions that each episode is judged under: another object, another task, another place."""
    threshold: float = at_least(0.0, 0.95, at_most=1.0)
    """From which probability on "done" counts as said."""
    calibrate: bool = False
    """Also fit the scores to outcomes on half of the episodes, measure that on the others, and write calibration.json,
    which reward.calibration takes."""
    split: Text = "eval"
    """eval (training conditions, other seeds), or one of the simulator's held-out splits."""
    seed: int = at_least(0, 0, at_most=LAST_SEED)
    """Fixes the episodes, the policy's noise and the intervals."""
    out: FilePath = "critic_eval"
    """Folder of critic.json and critic.html."""


@dataclass(frozen=True)
class CriticProbeConfig:
    reward: RewardNode
    """The server: reward.url, reward.model; reward.timeout is the longest wait for an answer."""
    seconds: float = at_least(0.1, 5.0)
    """For how long each number of requests at once is tried."""
    most: int = at_least(1, 64, at_most=1024)
    """Requests at once, at most."""
    cameras: int = at_least(1, 1, at_most=8)
    """Pictures of a moment."""


@dataclass(frozen=True)
class CriticServeConfig:
    model: FilePath
    """What answers, also as a plain word: a critic's file, asset:<name>, or the folder of a vision-language model of
    transformers."""
    name: Text | None = None
    """By which requests call the model; null: as file or folder are called."""
    host: Address = "127.0.0.1"
    """Address to listen on. Another than this machine's own needs a token."""
    port: int = at_least(0, 8077, at_most=65535)
    """Port to listen on; 0 takes a free one."""
    token_variable: SecretName | None = None
    """Environment variable that holds the token which requests must send as their API key."""
    device: Text = "cpu"
    """Where the model computes: cpu, cuda or cuda:<number>."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """For a vision-language model: type of its weights."""
    threads: int | None = at_least(1, None)
    """Processor threads of the model; null: one for a critic, all cores for a vision-language model."""
    batch: int = at_least(1, 32)
    """Most requests that are answered together."""
    wait_ms: float = at_least(0.0, 5.0)
    """Milliseconds that a request waits for others."""
    queue: int = at_least(1, 256)
    """Requests that may wait; further ones are told to ask again (429)."""
    deadline: float = at_least(0.1, 30.0)
    """Seconds after which a request without an answer is given up (504)."""
    body_mb: int = at_least(1, 16)
    """Largest request in MiB."""
    pictures: int = at_least(1, 16)
    """Most pictures of a request."""
    megapixels: float = at_least(0.01, 4.0, at_most=1000)
    """Most pixels of a picture, in millions."""
    memory_mb: int = at_least(1, 512)
    """MiB that all requests hold together, with their pictures decoded; more are told to ask again (429)."""

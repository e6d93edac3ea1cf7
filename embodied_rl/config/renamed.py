"""Other names of configuration keys: old names of ours, and what other libraries call the same thing."""

from collections.abc import Collection, Sequence

RENAMED = {"episodes": "curriculum", "logger.tensorboard": "logger=tensorboard|json"}
"""Old name of a key, or of a folder of YAML → its name."""
SYNONYMS = {
    "learning_rate": "lr",
    "batch_size": "minibatch",
    "mini_batch_size": "minibatch",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "max_grad_norm": "grad_clip",
    "ent_coef": "entropy",
    "entropy_coef": "entropy",
    "discount": "gamma",
    "gae_lambda": "lam",
    "n_envs": "num_envs",
    "max_iterations": "iterations",
    "ppo": "flow_sde",
    "action_horizon": "horizon",
    "chunk_size": "horizon",
    "lora_rank": "rank",
    "episodes": "curricula",
}
"""What others call it → its name here, without the node it belongs to."""


def describe_renamed(key: str, known: Collection[str]) -> str:
    """Return a sentence that gives the new name of an old key, to append to a message; empty if it is not `known`."""
    new = RENAMED.get(key)
    return f" It is called '{new}' now." if new in known else ""


def find_synonym(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that other libraries call `name`, both as full names of keys or bare; None without one.

    A key of the same node comes first; otherwise the first known name counts.
    """
    where, dot, last = name.rpartition(".")
    meant = SYNONYMS.get(last)
    if meant is None:
        return None
    beside = f"{where}{dot}{meant}"
    return beside if beside in known else next((each for each in known if each.rpartition(".")[2] == meant), None)

"""Wrong instructions, to see whether a policy listens."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode


def foreign_instructions(episodes: Sequence[Episode], own: Mapping[int, str], seed: int) -> dict[int, str]:
    """Give each episode the instruction of another one, of another task; every instruction is used once.

    Args:
        episodes: the list that is evaluated.
        own: episode index → its own instruction.
        seed: fixes who gets which.

    Returns:
        Episode index → the instruction to show.

    Raises:
        UserError: one task has more than half of the episodes, so that there are too few others.
    """
    tasks = [episode.task for episode in episodes]
    task, most = Counter(tasks).most_common(1)[0]
    if 2 * most > len(tasks):
        message = f"ablate=instruction needs instructions of other tasks, but task {task} has {most} of {len(tasks)}"
        raise UserError(f"{message} episodes. Evaluate all tasks, without task=….")
    source = np.random.default_rng(seed).permutation(len(tasks))
    for row in range(len(tasks)):
        if tasks[source[row]] == tasks[row]:
            other = _partner(row, source, tasks)
            source[[row, other]] = source[[other, row]]
    return {episode.index: own[episodes[source[row]].index] for row, episode in enumerate(episodes)}


def _partner(row: int, source: np.ndarray, tasks: Sequence[int]) -> int:
    """Whom `row` can swap with, so that both end up with another task.

    It exists: at most twice `most` - 1 rows are unfit, those of this task and those holding one, `row` being both.
    """
    return next(other for other in range(len(tasks)) if tasks[row] not in (tasks[other], tasks[source[other]]))

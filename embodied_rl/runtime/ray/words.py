"""What Ray says of processes that are gone, in fewer words."""

import re

_WORDS = (
    (r"killed by `?ray\.kill", "was ended by this run"),
    (r"out of memory|OutOfMemory|memory monitor|low on memory", "was ended by Ray, because its node ran out of memory"),
    (r"node (?:has )?died|node (?:is|was) (?:dead|lost)|NodeDied|too many heartbeats", "was lost with its node"),
    (r"owner has (?:died|exited)|owner died|OwnerDied", "was ended with whoever started it"),
    (r"failed to import|No module named", "cannot import embodied-rl there: install it on every node"),
    (r"worker process has died|unexpectedly exits|EOF|End of file", "was killed, or crashed"),
    (r"placement group.*removed|PlacementGroupRemoved", "was ended with its reservation"),
)


def ending(said: str) -> str:
    """How an actor ended, to follow its name; empty where we know no better than Ray."""
    # Ray lists what may have been the cause, too: memory, say. What it knows stands before that.
    known = re.split(r"Some common causes|may be caused by", said)[0]
    return next((words for pattern, words in _WORDS if re.search(pattern, known, re.IGNORECASE)), "")

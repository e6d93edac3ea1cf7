"""Unchanged lists are not sent again."""

import pickle

from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.processes.messages import ShortenedLists


def episodes(*indices: int) -> list[Episode | None]:
    return [Episode(index, 0, 10**15 + index) for index in indices]


def test_both_ends_remember_the_same_lists() -> None:
    here, there = ShortenedLists(), ShortenedLists()
    calls = [
        ("reset", (episodes(1, 2),)),
        ("step", (7, episodes(3, 4))),
        ("step", (8, episodes(3, 4))),
        ("reset", (episodes(1, 2),)),
        ("step", (9, [*episodes(3), None])),
        ("step", (9, [*episodes(3), None])),
        ("step", (9, episodes(3, 4))),
        ("snapshot", ()),
    ]
    sizes = []
    for method, args in calls:
        message = pickle.dumps(here.shorten(method, args))
        sizes.append(len(message))
        assert there.restore(method, pickle.loads(message)) == args
    assert sizes[2] < sizes[1] and sizes[3] < sizes[0] and sizes[5] < sizes[4] < sizes[6] + 40


def test_later_changes_of_a_list_have_no_effect() -> None:
    here, there = ShortenedLists(), ShortenedLists()
    mine = episodes(1, 2)
    got = there.restore("step", here.shorten("step", (mine,)))[0]
    mine[0] = None
    got.clear()
    assert there.restore("step", here.shorten("step", (mine,))) == (mine,)
    assert there.restore("step", here.shorten("step", (episodes(1, 2),))) == (episodes(1, 2),)

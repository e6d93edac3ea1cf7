"""Scenes go from one environment to another, and not more of them wait than may."""

from typing import Any

from embodied_rl_sims.libero.environment import Scenes


class Built:
    def __init__(self, task: int) -> None:
        self.task, self.closed = task, False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


def scenes(keep: int) -> Any:
    return Scenes(Built, keep)  # type: ignore[arg-type]


def test_a_waiting_scene_of_the_task_is_taken_and_never_twice() -> None:
    pool = scenes(keep=3)
    first, other = pool.take(1), pool.take(2)
    pool.give_back(1, first)
    pool.give_back(2, other)
    assert pool.take(1) is first
    assert pool.take(1) is not first and pool.take(2) is other


def test_of_too_many_the_one_that_waited_longest_is_closed() -> None:
    pool = scenes(keep=2)
    built = [pool.take(task) for task in range(3)]
    for task, scene in enumerate(built):
        pool.give_back(task, scene)
    assert [scene.closed for scene in built] == [True, False, False]
    assert pool.take(0) is not built[0]


def test_nothing_waits_where_nothing_is_to_be_kept() -> None:
    pool = scenes(keep=0)
    scene = pool.take(0)
    pool.give_back(0, scene)
    assert scene.closed


def test_closing_closes_what_waits() -> None:
    pool = scenes(keep=2)
    waiting, lent = pool.take(0), pool.take(1)
    pool.give_back(0, waiting)
    pool.close()
    assert waiting.closed and not lent.closed

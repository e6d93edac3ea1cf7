"""Each algorithm, policy, simulator, reward and robot has a page with the same sections, which its overview lists."""

import re

import pytest

from embodied_rl.config.option_files import list_options
from embodied_rl.deployment.robots.reading import load_robot
from tests.support.pages import DOCS

FOLDERS = {"algo": "algorithms", "policy": "policies", "sim": "simulators", "reward": "rewards", "robot": "robots"}
SECTIONS = ["When to use it", "Example", "Results", "How to replicate"]
PAGES = sorted(f"{folder}/{page.stem}" for folder in FOLDERS.values() for page in (DOCS / folder).glob("*.md"))
SHARED = {  # choices of other sizes or settings, and the page that names them
    **{name: name.removesuffix("_pi_rl") for name in ("flow_noise_pi_rl", "flow_sde_pi_rl", "grpo_pi_rl")},
    **{f"{name}_tiny": name for name in ("gr00t", "openvla", "openvla_oft", "pi0", "pi05", "pi0_fast")},
    **dict.fromkeys(("hackable", "inverted", "oracle"), "scripted"),
    **dict.fromkeys(("maniskill_plate", "maniskill_push"), "maniskill"),
    **{"fetch": "gymnasium", "metaworld_mt5": "metaworld", "sft_vla": "sft"},
}


def read_page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("group", FOLDERS)
def test_every_choice_has_a_page(group: str) -> None:
    names = {option.name for option in list_options(group)} - {"off"}  # of rewards: no scorer
    pages = {name: f"{FOLDERS[group]}/{SHARED.get(name, name)}" for name in names}
    assert names and set(pages.values()) <= set(PAGES), set(pages.values()) - set(PAGES)
    assert not [
        name for name, page in pages.items() if name in SHARED and not re.search(rf"\b{name}\b", read_page(page))
    ]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_the_sections_and_its_overview_lists_it(page: str) -> None:
    headings = re.findall(r"^## (.+)\n\n+(?=[^#\n])", read_page(page), re.MULTILINE)  # of sections that are not empty
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
    assert f"\n{page}\n" in read_page(page.partition("/")[0])


@pytest.mark.parametrize("name", [option.name for option in list_options("robot")])
def test_the_page_of_a_robot_has_the_numbers_of_its_file(name: str) -> None:
    robot, text = load_robot(name), read_page(f"robots/{name}")
    for entry, limits in zip(robot.actions, robot.limits.entries, strict=True):
        numbers = (f"{number:g}" for number in (limits.speed, limits.acceleration, limits.jerk))
        box = "none" if limits.low == -float("inf") else f"{limits.low:g} … {limits.high:g}"
        given = (
            f"`{entry.name}`",
            entry.unit,
            entry.kind,
            f"{entry.action_low:g} … {entry.action_high:g}",
            box,
            *numbers,
        )
        assert f"| {' | '.join(given)} |\n" in text
    assert f"{robot.control_hz:g} actions and {robot.command_hz:g} commands a second" in text
    assert all(f"`{camera.name}`, {camera.height} × {camera.width}" in text for camera in robot.cameras)

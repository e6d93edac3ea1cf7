"""MetaWorld's fifty tasks, and the sets of them that benchmarks use. This module does not import the package.

Instructions are those that published vision-language-action policies were trained with (lerobot/metaworld_mt50, RLinf);
difficulties are those by which their results are reported (arXiv:2206.14244, appendix).
"""

EASY, MEDIUM, HARD, VERY_HARD = "easy", "medium", "hard", "very_hard"

TASKS = {
    "assembly": (HARD, "Pick up a nut and place it onto a peg"),
    "basketball": (MEDIUM, "Dunk the basketball into the basket"),
    "bin-picking": (MEDIUM, "Grasp the puck from one bin and place it into another bin"),
    "box-close": (MEDIUM, "Grasp the cover and close the box with it"),
    "button-press-topdown": (EASY, "Press a button from the top"),
    "button-press-topdown-wall": (EASY, "Bypass a wall and press a button from the top"),
    "button-press": (EASY, "Press a button"),
    "button-press-wall": (EASY, "Bypass a wall and press a button"),
    "coffee-button": (EASY, "Push a button on the coffee machine"),
    "coffee-pull": (MEDIUM, "Pull a mug from a coffee machine"),
    "coffee-push": (MEDIUM, "Push a mug under a coffee machine"),
    "dial-turn": (EASY, "Rotate a dial 180 degrees"),
    "disassemble": (VERY_HARD, "Pick a nut out of a peg"),
    "door-close": (EASY, "Close a door with a revolving joint"),
    "door-lock": (EASY, "Lock the door by rotating the lock clockwise"),
    "door-open": (EASY, "Open a door with a revolving joint"),
    "door-unlock": (EASY, "Unlock the door by rotating the lock counter-clockwise"),
    "hand-insert": (HARD, "Insert the gripper into a hole"),
    "drawer-close": (EASY, "Push and close a drawer"),
    "drawer-open": (EASY, "Open a drawer"),
    "faucet-open": (EASY, "Rotate the faucet counter-clockwise"),
    "faucet-close": (EASY, "Rotate the faucet clockwise"),
    "hammer": (MEDIUM, "Hammer a screw on the wall"),
    "handle-press-side": (EASY, "Press a handle down sideways"),
    "handle-press": (EASY, "Press a handle down"),
    "handle-pull-side": (EASY, "Pull a handle up sideways"),
    "handle-pull": (EASY, "Pull a handle up"),
    "lever-pull": (EASY, "Pull a lever down 90 degrees"),
    "pick-place-wall": (VERY_HARD, "Pick a puck, bypass a wall and place the puck"),
    "pick-out-of-hole": (HARD, "Pick up a puck from a hole"),
    "pick-place": (HARD, "Pick and place a puck to a goal"),
    "plate-slide": (EASY, "Slide a plate into a cabinet"),
    "plate-slide-side": (EASY, "Slide a plate into a cabinet sideways"),
    "plate-slide-back": (EASY, "Get a plate from the cabinet"),
    "plate-slide-back-side": (EASY, "Get a plate from the cabinet sideways"),
    "peg-insert-side": (MEDIUM, "Insert a peg sideways"),
    "peg-unplug-side": (EASY, "Unplug a peg sideways"),
    "soccer": (MEDIUM, "Kick a soccer into the goal"),
    "stick-push": (VERY_HARD, "Grasp a stick and push a box using the stick"),
    "stick-pull": (VERY_HARD, "Grasp a stick and pull a box with the stick"),
    "push": (HARD, "Push the puck to a goal"),
    "push-wall": (MEDIUM, "Bypass a wall and push a puck to a goal"),
    "push-back": (HARD, "Push the puck to a goal"),
    "reach": (EASY, "Reach a goal position"),
    "reach-wall": (EASY, "Bypass a wall and reach a goal"),
    "shelf-place": (VERY_HARD, "Pick and place a puck onto a shelf"),
    "sweep-into": (MEDIUM, "Sweep a puck into a hole"),
    "sweep": (MEDIUM, "Sweep a puck off the table"),
    "window-open": (EASY, "Push and open a window"),
    "window-close": (EASY, "Push and close a window"),
}
"""Task → its difficulty and instruction, in the package's order. In the package each name ends in -v3."""

_MT10 = (
    "reach", "push", "pick-place", "door-open", "drawer-open", "drawer-close", "button-press-topdown",
    "peg-insert-side", "window-open", "window-close",
)  # fmt: skip
_MT25 = (
    *_MT10, "coffee-pull", "pick-out-of-hole", "disassemble", "pick-place-wall", "basketball", "stick-pull",
    "button-press-wall", "faucet-open", "door-lock", "lever-pull", "sweep-into", "faucet-close", "coffee-button",
    "button-press-topdown-wall", "dial-turn",
)  # fmt: skip
_ML45_TEST = ("bin-picking", "box-close", "hand-insert", "door-lock", "door-unlock")

SUITES = {
    "mt10": _MT10,
    "mt25": _MT25,
    "mt50": tuple(TASKS),
    "ml10_train": (
        "reach", "push", "pick-place", "door-open", "drawer-close", "button-press-topdown", "peg-insert-side",
        "window-open", "sweep", "basketball",
    ),
    "ml10_test": ("drawer-open", "door-close", "shelf-place", "sweep-into", "lever-pull"),
    "ml25_train": _MT25,
    "ml25_test": ("basketball", "door-close", "shelf-place", "sweep", "button-press"),
    "ml45_train": tuple(task for task in TASKS if task not in _ML45_TEST),
    "ml45_test": _ML45_TEST,
}  # fmt: skip
"""Suite → its tasks, as the package's multi-task (mt) and meta-learning (ml) benchmarks have them."""

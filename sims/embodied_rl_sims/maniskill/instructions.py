"""Instructions of ManiSkill's tasks; the package itself provides only names and descriptions."""

import re

_INSTRUCTIONS = {
    "DrawTriangle-v1": "draw the triangle that is shown on the canvas",
    "LiftPegUpright-v1": "lift the peg and stand it upright",
    "PegInsertionSide-v1": "insert the peg into the hole of the box from the side",
    "PickCube-v1": "pick up the red cube and move it to the goal position",
    "PickCubeSO100-v1": "pick up the red cube and move it to the goal position",
    "PickCubeWidowXAI-v1": "pick up the red cube and move it to the goal position",
    "PlaceSphere-v1": "pick up the blue sphere and place it into the bin",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PokeCube-v1": "poke the cube with the peg",
    "PullCube-v1": "pull the blue cube onto the red and white target",
    "PullCubeTool-v1": "pull the cube closer with the tool",
    "PushCube-v1": "push the blue cube onto the red and white target",
    "PushT-v1": "push the t block onto its outline",
    "RollBall-v1": "roll the ball to the goal region",
    "SO100GraspCube-v1": "grasp the cube and lift it",
    "StackCube-v1": "stack the red cube on the green cube",
    "StackPyramid-v1": "build a pyramid of the three cubes",
}


def make_instruction(task: str) -> str:
    """Return a task's instruction in lower case; derive it from the task's id if the table lacks the task.

    Args:
        task: the package's id, such as "PickCube-v1".
    """
    if task in _INSTRUCTIONS:
        return _INSTRUCTIONS[task]
    name = re.sub(r"^MS-|-v\d+$", "", task)
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return " ".join(words).lower()

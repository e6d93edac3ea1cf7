"""The protocol of the harness vla-eval (allenai/vla-evaluation-harness, version 1): hello, observation, action.

Each message is a map of `type`, `payload`, `seq` and `timestamp`. The harness sends an observation for each control
step and wants one action; the policy is asked where the actions of its last chunk are used up. An episode begins with
none.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.server import ServerConnection

from embodied_rl.deployment.policy_server.names import WireNames
from embodied_rl.deployment.policy_server.request import PolicyRequest, read_request
from embodied_rl.deployment.policy_server.served import Answer, Unanswered
from embodied_rl.deployment.policy_server.wire import WireError, WireLimits, pack, unpack
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.version import __version__
from embodied_rl.serving.pictures import decode_file
from embodied_rl.serving.refusal import Refusal

VERSION = 1
IMAGE = "__image__"
KINDS = ("hello", "observation", "action", "episode_start", "episode_end", "error")
MOST_PIXELS = 2048 * 2048
FORMATS = {"png": "PNG", "jpeg": "JPEG"}


class HarnessSession:
    """One connection.

    Args:
        connection: of the harness.
        spec: of the policy.
        names: how its observations are called; where nothing is said, the harness's own convention: `images/<camera>`,
            `state`, `task_description`.
        limits: of a message.
        ask: returns the policy's answer.
    """

    def __init__(
        self,
        connection: ServerConnection,
        spec: PolicyDescription,
        names: WireNames,
        limits: WireLimits,
        ask: Callable[[PolicyRequest], Awaitable[Answer]],
    ) -> None:
        self._connection, self._spec, self._limits, self._ask = connection, spec, limits, ask
        self._names = WireNames({PROMPT: "task_description", **names.given}, names.ignored)
        self._left: deque[NDArray[np.float32]] = deque()

    async def run(self) -> None:
        """Answer messages until the connection ends; a message that is refused ends it, too."""
        while True:
            seq = 0
            try:
                kind, payload, seq = read_message(await self._connection.recv(), self._limits)
                await self._answer(kind, payload, seq)
            except (WireError, UserError, Refusal, Unanswered) as error:
                await self._refuse(str(error), seq)
                return

    async def _answer(self, kind: str, payload: dict[str, Any], seq: int) -> None:
        if kind == "hello":
            spoken = payload.get("protocol_version", VERSION)
            if type(spoken) is not int or spoken != VERSION:
                raise UserError(f"the harness speaks version {ascii(spoken)[:20]} of its protocol, we {VERSION}")
            await self._send("hello", self._describe(), seq)
        elif kind == "episode_start":
            self._left.clear()
        elif kind == "observation":
            await self._send("action", {"actions": await self._find_action(payload)}, seq)
        elif kind not in ("episode_end", "error"):
            raise UserError(f"a harness sends no {kind!r}")

    async def _find_action(self, payload: dict[str, Any]) -> NDArray[np.float32]:
        """Return the next action, float32 [A], of the last chunk or of a new one. Each observation is checked."""
        request = read_request(_decode_images(payload), self._spec, self._names)
        payload.clear()  # the request holds copies of its arrays
        if not request.single:
            raise UserError("an observation of the harness is of one robot, without an axis of rows")
        if not self._left:
            self._left.extend((await self._ask(request)).actions)
        return self._left.popleft()

    def _describe(self) -> dict[str, Any]:
        size = len(self._spec.action_names)
        low, high = min(self._spec.action_low), max(self._spec.action_high)
        return {
            "harness_version": "",
            "protocol_version": VERSION,
            "model_server": f"embodied-rl {__version__}",
            "capabilities": {},
            "action_spec": {
                "actions": {"name": "actions", "dims": size, "format": "raw", "range": [low, high],
                            "description": ", ".join(self._spec.action_names)},
            },
            "observation_spec": {
                **{f"{IMAGES}{name}": {"name": name, "dims": 0, "format": "rgb_hwc_uint8",
                                       "description": f"{size[0]} × {size[1]}"}
                   for name, size in self._spec.cameras.items()},
                STATE: {"name": STATE, "dims": len(self._spec.state_names), "format": "raw",
                        "description": ", ".join(self._spec.state_names)},
                "language": {"name": "language", "dims": 0, "format": "language"},
            },
        }  # fmt: skip

    async def _send(self, kind: str, payload: dict[str, Any], seq: int) -> None:
        message = {"type": kind, "payload": payload, "seq": seq, "timestamp": time.time()}
        await self._connection.send(pack(message, text_keys=True))

    async def _refuse(self, text: str, seq: int) -> None:
        await self._send("error", {"error": text}, seq)
        await self._connection.close(1008, "refused; the reason is in the last message")


def read_message(message: bytes | str, limits: WireLimits) -> tuple[str, dict[str, Any], int]:
    """Return type, payload and sequence number of a message.

    Raises:
        WireError: it is none.
    """
    said = unpack(message, limits)
    if not isinstance(said, dict) or not {"type", "payload", "seq"} <= said.keys():
        raise WireError("a message has type, payload, seq and timestamp")
    kind, payload, seq = said["type"], said["payload"], said["seq"]
    if kind not in KINDS or not isinstance(payload, dict) or type(seq) is not int or not 0 <= seq < 2**63:
        raise WireError(f"type is one of {', '.join(KINDS)}, payload a map, seq a whole number")
    return kind, payload, seq


def _decode_images(value: Any) -> Any:
    """Return a payload with its encoded pictures decoded, to uint8 [h, w, 3]."""
    if not isinstance(value, dict):
        return value
    if IMAGE not in value:
        return {name: _decode_images(item) for name, item in value.items()}
    kind, data = value.get("format"), value.get("data")
    if kind not in FORMATS or not isinstance(data, bytes):
        raise WireError(f"pictures are arrays, or bytes in one of the formats {', '.join(FORMATS)}")
    return decode_file(data, "a picture", MOST_PIXELS, lambda size: None, (FORMATS[kind],))

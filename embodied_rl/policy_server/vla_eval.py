"""The protocol of the harness vla-eval (allenai/vla-evaluation-harness, version 1): hello, observation, action.

Each message is a map of `type`, `payload`, `seq` and `timestamp`. The harness sends an observation for each control
step and expects one action. Inference runs when the actions of the last chunk are used up; an episode starts without
actions.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.server import ServerConnection

from embodied_rl.deployment.policy_client.request import PolicyRequest, WireNames, read_request
from embodied_rl.deployment.policy_client.wire import WireError, WireLimits, pack, unpack
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.version import __version__
from embodied_rl.policy_server.served import InferenceFailed, PolicyResponse
from embodied_rl.serving.pictures import decode_file
from embodied_rl.serving.refusal import Refusal

VERSION = 1
IMAGE = "__image__"
KINDS = ("hello", "observation", "action", "episode_start", "episode_end", "error")
MOST_PIXELS = 2048 * 2048
FORMATS = {"png": "PNG", "jpeg": "JPEG"}


class VlaEvalSession:
    """One connection of the harness.

    Args:
        names: names of the observation entries. Default: those of the harness, `images/<camera>`, `state` and
            `task_description`.
        infer: returns the response of the policy.
    """

    def __init__(
        self,
        connection: ServerConnection,
        spec: PolicyDescription,
        names: WireNames,
        limits: WireLimits,
        infer: Callable[[PolicyRequest], Awaitable[PolicyResponse]],
    ) -> None:
        self._connection, self._spec, self._limits, self._infer = connection, spec, limits, infer
        self._names = WireNames({PROMPT: "task_description", **names.given}, names.ignored)
        self._remaining: deque[NDArray[np.float32]] = deque()

    async def run(self) -> None:
        """Answer messages until the connection ends; an invalid message ends it as well."""
        while True:
            seq = 0
            try:
                content = unpack(await self._connection.recv(), self._limits)
                if not isinstance(content, dict) or not {"type", "payload", "seq"} <= content.keys():
                    raise WireError("a message has type, payload, seq and timestamp")
                kind, payload, number = content["type"], content["payload"], content["seq"]
                known = kind in KINDS and isinstance(payload, dict)
                if not known or type(number) is not int or not 0 <= number < 2**63:
                    raise WireError(f"type is one of {', '.join(KINDS)}, payload a map, seq an integer")
                seq = number
                del content  # the payload is freed once it is read
                await self._answer(kind, payload, seq)
            except (WireError, UserError, Refusal, InferenceFailed) as error:
                await self._send("error", {"error": str(error)}, seq)
                await self._connection.close(1008, "refused; the reason is in the last message")
                return

    async def _answer(self, kind: str, payload: dict[str, Any], seq: int) -> None:
        if kind == "hello":
            version = payload.get("protocol_version", VERSION)
            if type(version) is not int or version != VERSION:
                raise UserError(
                    f"the harness uses version {ascii(version)[:20]} of its protocol, this server {VERSION}",
                    code="protocol-version-mismatch",
                )
            await self._send("hello", self._describe_policy(), seq)
        elif kind == "episode_start":
            self._remaining.clear()
        elif kind == "observation":
            request = read_request(_decode_images(payload), self._spec, self._names)
            payload.clear()  # the request holds copies of its arrays
            if not request.single:
                raise UserError(
                    "an observation of the harness must be of one robot, without a batch axis",
                    code="observation-invalid",
                )
            if not self._remaining:
                self._remaining.extend((await self._infer(request)).actions)
            await self._send("action", {"actions": self._remaining.popleft()}, seq)
        elif kind not in ("episode_end", "error"):
            raise UserError(f"unexpected message type {kind!r}", code="message-type-unknown")

    def _describe_policy(self) -> dict[str, Any]:
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


def _decode_images(value: Any) -> Any:
    """Return a payload with its encoded images decoded to uint8 [h, w, 3]."""
    if not isinstance(value, dict):
        return value
    if IMAGE not in value:
        return {name: _decode_images(item) for name, item in value.items()}
    kind, data = value.get("format"), value.get("data")
    if kind not in FORMATS or not isinstance(data, bytes):
        raise WireError(f"pictures are arrays, or bytes in one of the formats {', '.join(FORMATS)}")
    return decode_file(data, "a picture", MOST_PIXELS, lambda size: None, (FORMATS[kind],))

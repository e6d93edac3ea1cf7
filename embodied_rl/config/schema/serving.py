"""The configurations of a policy behind a server: of the command `serve`, and of who asks one."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text, Trust


@dataclass(frozen=True)
class ServeConfig:
    policy: FilePath
    """Who acts, also as a plain word: a run folder, a checkpoint file, or asset:<name>."""
    follow: bool = False
    """Of a run that trains: answer with its newest weights, swapped in between two answers."""
    host: Address = "127.0.0.1"
    """Address to listen on. Another than this machine's own needs a token."""
    port: int = at_least(0, 8000, at_most=65535)
    """Port to listen on; 0 takes a free one."""
    token_variable: SecretName | None = None
    """Environment variable that holds the token which clients must send as their API key."""
    keys: dict[Text, Text] = field(default_factory=dict)
    """How clients call entries of observations, our name: their name, such as {images/front: observation/image}.
    Several of their names may be joined for the state: a+b. What is not here has our name."""
    ignore: tuple[Text, ...] = ()
    """Entries of clients' observations that are left out; others that the policy does not know are refused."""
    send: Literal["horizon", "executed"] = "horizon"
    """Actions that clients of other projects get: all that the policy predicts, as openpi's server sends them, or those
    that are meant to be executed before the next question. Clients of embodied-rl get the latter, unless they ask."""
    metadata: Annotated[dict[str, Any], Trust.PLAIN] = field(default_factory=dict)
    """What clients get when they connect, in place of the policy's description: RoboArena's and DreamZero's want their
    server's configuration there, such as {image_resolution: [224, 224], n_external_cameras: 1, …}."""
    device: Text = "cpu"
    """Where the policy computes: cpu, cuda or cuda:<number>."""
    threads: int | None = at_least(1, None)
    """Processor threads of the policy; null: all cores but one, which answers the network."""
    batch: int = at_least(1, 8)
    """Most requests that are answered together. While several clients are connected they are filled up to multiples
    of 4 rows, so that no answer depends on what others ask; 1: one after the other, and nothing is filled up."""
    wait_ms: float = at_least(0.0, 4.0)
    """Milliseconds that a request waits for those of other clients that are connected."""
    clients: int = at_least(1, 64, at_most=1024)
    """Most connections."""
    message_mb: int = at_least(1, 16, at_most=1024)
    """Largest message in MiB."""
    deadline: float = at_least(0.1, 30.0)
    """Seconds after which a request without an answer is given up."""


@dataclass(frozen=True)
class ServedNode:
    """A policy behind a server that an evaluation asks."""

    keys: dict[Text, Text] = field(default_factory=dict)
    """How the server calls entries of observations, our name: its name, such as {images/front: observation/image}. A
    state that it takes as several entries: their names and sizes, a:7+b:1."""
    actions: Text = "actions"
    """How a server of others calls the actions in its answer."""
    deadline: float = at_least(0.1, 60.0)
    """Seconds for each question, connecting again included."""
    token_variable: SecretName | None = None
    """Environment variable that holds the server's token."""

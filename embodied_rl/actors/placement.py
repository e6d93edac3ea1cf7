"""Placement of an actor's network: its device, its precision, and whether its acting is compiled."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.network_actor import NetworkActor
from embodied_rl.interfaces.backbone import Backbone, Context
from embodied_rl.interfaces.errors import UserError
from embodied_rl.schema import PolicyNode

AnyActor = TypeVar("AnyActor", bound=NetworkActor)


def resolve_placement(node: PolicyNode) -> PolicyNode:
    """Return `node` with `device=auto`, `autocast=null` and `precision=null` replaced by the choice for this machine.

    Raises:
        UserError: the device does not exist.
    """
    name = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = name if node.device == "auto" else node.device
    try:
        device = torch.device(wanted)
    except RuntimeError:
        message = f"policy.device={wanted} is not a device: give cpu, cuda or cuda:<number>."
        raise UserError(message, code="device-unknown") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        message = f"policy.device={wanted}: there is no CUDA device here, or this build of torch supports none."
        raise UserError(message, code="device-missing")
    autocast = node.autocast
    if autocast is None:
        autocast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    halved = device.type == "cuda" and autocast and node.train != "full"
    precision = node.precision or ("bfloat16" if halved else "float32")
    return replace(node, device=str(device), autocast=autocast, precision=precision)


def describe_placement(node: PolicyNode) -> str:
    """Return device and precision for the user, and whether a GPU is left unused."""
    node = resolve_placement(node)
    device = torch.device(node.device)
    if device.type == "cuda":
        products = "bfloat16 products, TF32 elsewhere" if node.autocast else "float32"
        products += ", frozen weights in bfloat16" if node.precision == "bfloat16" else ""
        return f"{device} ({torch.cuda.get_device_name(device)}), {products}"
    unused = "; a CUDA GPU is idle: policy.device=cuda uses it" if torch.cuda.is_available() else ""
    return f"{device}, {'bfloat16 products' if node.autocast else 'float32'}{unused}"


def place_actor(actor: AnyActor, node: PolicyNode) -> AnyActor:
    """Move an actor to the device and precision of `node`, and compile its acting if `node.compile`.

    Raises:
        UserError: the device does not exist, or the precision is too coarse for trainable parameters.
    """
    node = resolve_placement(node)
    actor.autocast = bool(node.autocast)
    place_network(actor.backbone, node)
    device = torch.device(node.device)
    if node.compile:
        if not isinstance(actor, FlowActor):
            raise UserError("policy.compile=true compiles flows, and this policy has none.", code="key-unused")
        compile_acting(actor, device)
    return actor if device.type == "cpu" else actor.to(device)


def check_placement(node: PolicyNode) -> None:
    """Check for errors that `place_actor` would raise for any network.

    Raises:
        UserError: the device does not exist, or all parameters would be trained in bfloat16.
    """
    resolve_placement(node)
    if node.precision == "bfloat16" and node.train == "full":
        raise _too_coarse(node)


def place_network(network: Backbone, node: PolicyNode) -> None:
    """Move a network without its actor to the device and precision of `node`.

    Raises:
        UserError: see `place_actor`.
    """
    node = resolve_placement(node)
    if node.precision == "bfloat16":
        adapted = {id(parameter) for name, parameter in network.named_parameters() if ".lora_" in name}
        still = [parameter for parameter in network.parameters() if not parameter.requires_grad]
        frozen = [parameter for parameter in network.prefix_parameters() or still if id(parameter) not in adapted]
        if not frozen or any(parameter.requires_grad for parameter in frozen):
            raise _too_coarse(node)
        for parameter in frozen:
            parameter.data = parameter.data.to(torch.bfloat16)
    if torch.device(node.device).type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = bool(node.autocast)
    network.to(node.device)


def compile_acting(actor: FlowActor, device: torch.device) -> None:
    """Compile the velocity for calls without gradients, as one graph, without fallback to Python."""
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    plain = actor.backbone.velocity
    fast: Callable[..., Any] = torch.compile(plain, fullgraph=True, mode=mode)

    def velocity(x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled():
            return plain(x, t, context)
        if device.type == "cuda":  # a graph overwrites the results of its last run
            torch.compiler.cudagraph_mark_step_begin()
            value, features = fast(x, t, context)
            return value.clone(), features.clone()
        return fast(x, t, context)

    actor.backbone.velocity = velocity


def _too_coarse(node: PolicyNode) -> UserError:
    return UserError(
        f"policy.precision=bfloat16 is for a frozen vision-language model, and policy.train={node.train} lets it "
        "learn, in steps that bfloat16 rounds away: use policy.train=expert or lora, or precision=float32.",
        code="precision-too-coarse",
    )

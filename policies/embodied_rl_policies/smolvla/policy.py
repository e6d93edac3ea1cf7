"""SmolVLA (arXiv:2506.01844): SmolVLM2's first layers encode cameras, words and state; an action expert reads them.

Cameras and words → image and word tokens, which see each other → the state's token, which sees them. The keys and
values of every language layer are cached. In each layer, the expert's action tokens attend either to these and,
causally, to each other ("joint"), or only to projections of these ("cross").

Computed once per observation: `perceive` (vision tower and connector), `encode_prefix` (image and word tokens through
the language model), `context` (the state's token, and the projections of the cross layers). A denoise step computes
only action tokens. `encode_prefix` uses no parameter outside the vision-language model, so its result can be cached
across epochs if that model is frozen; `context` depends on the state projection and the expert.

Shapes: `n` rows, `C` cameras, `P` tokens of one camera, `L` prompt tokens, `T` image and prompt tokens, `H` actions,
`D` action dimensions, `S` state dimensions, `W` width, `E` the expert's, `N` layers, `G` key-value heads, `d` head
dimension.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl_policies.native import make_connector, make_smolvlm_vision
from embodied_rl_policies.smolvla import config as sizes
from embodied_rl_policies.smolvla.config import SmolVLAConfig
from embodied_rl_policies.smolvla.network import Expert, LanguageModel
from embodied_rl_policies.vlm import (
    check_robot,
    embed_time,
    end_line,
    list_adapted,
    prepare_images,
    recompute_activations,
)

INITIAL_DEVIATION = 0.02


class SmolVLA(ForeignCheckpoint, FlowBackbone):
    """SmolVLA as lerobot trains it, with fresh weights until a checkpoint is read."""

    Config = SmolVLAConfig
    CAN_BE_EMPTY = True
    PROMPT_WORDS = ()
    LEROBOT_PROMPT = "smolvla_new_line_processor"
    EXPORTS_TO = ("lerobot", "peft")
    CHECKPOINT_NAMES = sizes.NAMES
    CHECKPOINT_UNREAD = sizes.UNREAD

    config: SmolVLAConfig

    def __init__(
        self,
        config: SmolVLAConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights from torch's global generator.

        Dimensions of the robot, token ids (with 0 for padding) and prompts may not exceed those of `config`. Cameras,
        at least one, are in order; their images have any size. `auxiliary_names` must be empty.

        Raises:
            UserError: the robot or tokenizer exceeds the configured sizes, no camera is given, or auxiliary names are.
        """
        super().__init__()
        needed = {
            "action_dim": action_dim, "state_dim": state_dim, "vocabulary": vocabulary_size,
            "token_length": token_length,
        }  # fmt: skip
        check_robot("SmolVLA", config, needed, cameras, auxiliary_names)
        self.config = config
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=config.action_dim,
            state_dim=config.state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=config.expert_width,
            context_dim=config.width,
        )
        width = config.expert_width
        self.vision_model = make_smolvlm_vision(config)
        self.connector = make_connector(
            vision_width=config.vision_width, width=config.width, pixel_shuffle=config.pixel_shuffle
        )
        self.text_model, self.expert = LanguageModel(config, config.vocabulary or vocabulary_size), Expert(config)
        self.state_proj = nn.Linear(config.state_dim, config.width)
        self.action_in_proj = nn.Linear(config.action_dim, width)
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)
        self.action_out_proj = nn.Linear(width, config.action_dim)
        for module in (*self.connector.modules(), *self.text_model.modules(), *self.expert.modules()):
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which the network computes."""
        return self.action_in_proj.weight.dtype

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes from tensors where possible, else from lerobot's configuration."""
        return sizes.read_sizes(shapes, config, given)

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the unused end of the language model."""
        return sizes.list_unused_shapes(self.config, self.text_model.embed_tokens.weight.shape[0])

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the configuration entries of lerobot's SmolVLA.

        Raises:
            UserError: the format is openpi, which has no SmolVLA.
        """
        if form != "lerobot":
            raise UserError(f"{form} has no SmolVLA: give format=lerobot.", code="format-does-not-support-policy")
        return sizes.make_configuration(self.config, steps)

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of vision tower and connector."""
        return [*self.vision_model.parameters(), *self.connector.parameters()]

    def prefix_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of vision and language model, without the state's projection."""
        return [*self.perception_parameters(), *self.text_model.parameters()]

    def adapted_modules(self) -> list[str]:
        """Return the used attention and feed-forward layers of language model and expert."""
        return list_adapted("text_model.", self.config.layers)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the projections of state, actions and time."""
        towers = ("vision_model.", "connector.", "text_model.", "expert.")
        return [parameter for name, parameter in self.named_parameters() if not name.startswith(towers)]

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return the instructions as prompts, each with a line feed at its end."""
        return end_line(instructions)

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute the connector's output "image_features" [n, C, P, W] of the images."""
        images = [
            prepare_images(inputs.images[name], self.config.resolution, centred=False) for name in self.spec.cameras
        ]
        pixels = torch.stack(images, dim=1).flatten(0, 1).to(self.dtype)
        embeddings = self.vision_model.embeddings
        patches = embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        hidden = patches + embeddings.position_embedding.weight
        for layer in self.vision_model.encoder.layers:
            hidden = recompute_activations(layer, self.config.gradient_checkpointing, hidden, None)
        features = self.connector(self.vision_model.post_layernorm(hidden))
        return {"image_features": features.unflatten(0, (-1, len(images)))}

    def encode_prefix(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Encode cameras and words with the language model; the state is not used.

        Returns:
            "mask" bool [n, T], True for existing tokens; "key_value" [n, N, 2, G, T, d]; "sum" float32 [n, W], the sum
            of the existing tokens at the input of the last layer.
        """
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        scale = math.sqrt(self.config.width)
        images = features["image_features"].to(self.dtype) * scale
        if self.config.image_special_tokens:  # the start and end tokens of an image, which are not scaled
            fake, whole = self.config.fake_image_token, self.config.global_image_token
            frame = self.text_model.embed_tokens(torch.tensor([fake, whole, fake], device=images.device))
            frame = frame.expand(*images.shape[:2], -1, -1)
            images = torch.cat([frame[:, :, :2], images, frame[:, :, 2:]], dim=2)
        embedded = torch.cat([images.flatten(1, 2), self.text_model.embed_tokens(inputs.tokens) * scale], dim=1)
        present = inputs.tokens != 0
        mask = F.pad(present, (embedded.shape[1] - present.shape[1], 0), value=True)
        hidden, memory = self.text_model(embedded, mask)
        total = (hidden.float() * mask[..., None]).sum(dim=1)
        return {"mask": mask, "sum": total, "key_value": torch.stack(memory, dim=1)}

    def context(self, prefix: Mapping[str, Tensor], state: Tensor) -> Context:
        """Compute the context of all denoise steps from the output of `encode_prefix` and the state float32 [n, S].

        Returns:
            "mask" bool [n, T + 1]; "key_value/i" [n, 2, G, T + 1, d], the input of the expert's layer i; pooled is the
            mean of the existing tokens at the input of the language model's last layer.
        """
        mask = prefix["mask"]
        token = self.state_proj(state.to(self.dtype))[:, None]
        last, memory = self.text_model.append(token, mask, prefix["key_value"].unbind(1))
        pooled = (prefix["sum"] + last[:, 0].float()) / (mask.sum(dim=1, keepdim=True) + 1)
        kept = {f"key_value/{index}": layer for index, layer in enumerate(self.expert.project(memory))}
        return Context({"mask": F.pad(mask, (0, 1), value=True), **kept}, pooled)

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode an observation: `encode_prefix`, unless `inputs.prefix` already has its result, then `context`."""
        prefix = inputs.prefix if inputs.prefix is not None else self.encode_prefix(inputs)
        return self.context(prefix, inputs.state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the expert's features [n, H, E]."""
        config, tensors = self.config, context.tensors
        actions = self.action_in_proj(x.to(self.dtype))
        times = t.reshape(len(t), -1)
        time = embed_time(times, config.expert_width, config.min_period, config.max_period).to(actions.dtype)
        both = torch.cat([actions, time.expand_as(actions)], dim=-1)
        tokens = self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both)))
        features = self.expert(tokens, tensors["mask"], [tensors[f"key_value/{i}"] for i in range(config.layers)])
        return self.action_out_proj(features).float(), features.float()

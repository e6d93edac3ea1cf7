"""What OpenVLA and OpenVLA-OFT share: cameras → DINOv2 and SigLIP → projector → Llama 2.

Modules have the names of the published checkpoints. Both networks read the words' start token, all patches, the state
(if there is a projector for it), the other words and an empty token; they differ in how actions follow.

Shapes: `n` rows, `C` cameras, `P` patches of a camera, `L` prompt tokens, `T` tokens before the actions, `H` actions,
`D` action dimensions, `N` bins, `S` state entries, `W` width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Backbone, PolicyInput, PolicySpec, TokenBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl_policies.native import make_decoder_layer, make_rms_norm
from embodied_rl_policies.openvla import checkpoint
from embodied_rl_policies.openvla.config import OpenVLAConfig
from embodied_rl_policies.openvla.images import normalise_colours, prepare_images
from embodied_rl_policies.openvla.vision import VisionTower
from embodied_rl_policies.vlm import check_robot

INITIAL_DEVIATION = 0.02


class VisionBackbone(nn.Module):
    """Both vision towers; their patches are joined entry by entry."""

    def __init__(self, config: OpenVLAConfig) -> None:
        super().__init__()
        self.config = config
        self.featurizer, self.fused_featurizer = (
            VisionTower(
                width=getattr(config, f"{name}_width"),
                heads=getattr(config, f"{name}_heads"),
                hidden=getattr(config, f"{name}_hidden"),
                layers=getattr(config, f"{name}_layers"),
                patches=config.patches,
                patch=config.patch,
                registers=registers,
            )
            for name, registers in (("dino", config.registers), ("siglip", 0))
        )

    def forward(self, colours: Tensor, dtype: torch.dtype, words: Tensor | None = None) -> Tensor:
        """Compute patches [n, P, V] of colours in [0, 1], float32 [n, 3, r, r]; with FiLM `words` are [n, W]."""
        config = self.config
        pairs = (config.dino_mean, config.dino_std), (config.siglip_mean, config.siglip_std)
        towers = zip((self.featurizer, self.fused_featurizer), pairs, strict=True)
        less = config.gradient_checkpointing
        patches = [tower(normalise_colours(colours, *pair).to(dtype), less, words) for tower, pair in towers]
        return torch.cat(patches, dim=-1)


class Projector(nn.Module):
    """Patches → tokens of the language model."""

    def __init__(self, vision: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(vision, 4 * vision), nn.Linear(4 * vision, width)
        self.fc3 = nn.Linear(width, width)

    def forward(self, patches: Tensor) -> Tensor:
        return self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(patches)))))


class StateProjector(nn.Module):
    """The normalised state → one token of the language model."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(entries, width), nn.Linear(width, width)

    def forward(self, state: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(state)))


class Llama(nn.Module):
    """The parameters of Llama 2, as transformers' LlamaForCausalLM names them."""

    model: Any

    def __init__(self, config: OpenVLAConfig, logits: bool) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.model.layers = nn.ModuleList(
            make_decoder_layer(
                width=config.width,
                hidden=config.hidden,
                heads=config.heads,
                key_value_heads=config.key_value_heads,
                head_dim=config.head_dim,
                epsilon=config.norm_epsilon,
            )
            for _ in range(config.layers)
        )
        self.model.norm = make_rms_norm(config.width, config.norm_epsilon)
        if logits:
            self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)


class OpenVLABackbone(ForeignCheckpoint, Backbone):
    """The common parts of all these networks, with fresh weights until a checkpoint is read.

    Attributes:
        LOGITS: whether the network has the language model's output layer.
    """

    LOGITS: ClassVar[bool] = True
    CAN_BE_EMPTY = True
    EXPORTS_TO = ("openvla",)
    STATISTICS = "quantiles"
    PROMPT_WORDS = ("in", "what", "action", "should", "the", "robot", "take", "to", "out")

    config: OpenVLAConfig

    def __init__(
        self,
        config: OpenVLAConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights from torch's global generator.

        No parameter depends on the number of action dimensions, which is the robot's. Cameras, at least one, are in
        order; their images have any size. `auxiliary_names` must be empty.

        Raises:
            UserError: robot or tokenizer exceed the configured sizes, no camera is given, or auxiliary names are.
        """
        super().__init__()
        if config.action_dim not in (None, action_dim):
            message = f"policy.action_dim={config.action_dim}, and the robot has {action_dim} action entries."
            raise UserError(message, code="policy-does-not-fit")
        needed = {"state_dim": state_dim, "vocabulary": vocabulary_size, "token_length": token_length}
        check_robot("OpenVLA", config, needed, cameras, auxiliary_names)
        self.config = config
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=action_dim,
            state_dim=config.state_dim or state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=config.width,
            context_dim=config.width,
        )
        self.vision_backbone = VisionBackbone(config)
        self.projector = Projector(config.dino_width + config.siglip_width, config.width)
        self.language_model = Llama(config, self.LOGITS)
        if config.state_dim is not None:
            self.proprio_projector = StateProjector(config.state_dim, config.width)
        for module in self.language_model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which the network computes."""
        return self.language_model.model.embed_tokens.weight.dtype

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes from tensors where possible, else from the configuration."""
        return checkpoint.read_sizes(shapes, config, given)

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what the official class stores besides."""
        return checkpoint.list_unread_shapes(self.config)

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the configuration without the statistics.

        Raises:
            UserError: the format is not openvla.
        """
        if form != "openvla":
            raise UserError(f"{form} has no OpenVLA: give format=openvla.", code="format-does-not-support-policy")
        return checkpoint.make_configuration(self.config)

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of vision towers and projector."""
        return [*self.vision_backbone.parameters(), *self.projector.parameters()]

    def adapted_modules(self) -> list[str]:
        """Return the attention and feed-forward maps of the language model."""
        parts = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
        return [f"language_model.model.layers.{index}.{part}" for index in range(self.config.layers) for part in parts]

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the state's projector, if there is one."""
        return [] if self.config.state_dim is None else list(self.proprio_projector.parameters())

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return OpenVLA's prompts; the empty token that follows them is added by `embed_prompt`."""
        return [f"In: What action should the robot take to {text.lower()}?\nOut:" for text in instructions]

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute the projected patches "image_features" [n, C P, W] of all cameras."""
        size, area = self.config.resolution, self.config.crop_area
        images = [prepare_images(inputs.images[name], size, area) for name in self.spec.cameras]
        words = self.average_words(inputs.tokens)
        words = None if words is None else words.repeat_interleave(len(images), dim=0)
        patches = self.vision_backbone(torch.stack(images, dim=1).flatten(0, 1), self.dtype, words)
        return {"image_features": self.projector(patches).unflatten(0, (-1, len(images))).flatten(1, 2)}

    def average_words(self, tokens: Tensor) -> Tensor | None:
        """Return what the vision towers read of prompts int64 [n, L]; None unless they have FiLM."""
        return None

    def embed_prompt(self, inputs: PolicyInput) -> tuple[Tensor, Tensor]:
        """Return the tokens before the empty token [n, T - 1, W], and bool [n, T - 1], True where there is one.

        A state beyond its statistics' range is clipped, as OpenVLA-OFT's evaluation does.
        """
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        words = self.language_model.model.embed_tokens(inputs.tokens)
        between = [features["image_features"].to(words.dtype)]
        if self.config.state_dim is not None:
            state = inputs.state.clamp(-1, 1).to(self.proprio_projector.fc1.weight.dtype)
            between.append(self.proprio_projector(state)[:, None].to(words.dtype))
        present = inputs.tokens != 0
        added = sum(part.shape[1] for part in between)
        mask = torch.cat([present[:, :1], present.new_ones(len(present), added), present[:, 1:]], dim=1)
        return torch.cat([words[:, :1], *between, words[:, 1:]], dim=1), mask

    def embed_token(self, token: int, rows: int) -> Tensor:
        """Return the embedding of one token id for each row, [n, 1, W]."""
        return self.language_model.model.embed_tokens.weight[token].expand(rows, 1, -1)


class BinnedOpenVLA(OpenVLABackbone, TokenBackbone):
    """An OpenVLA whose actions are the language model's last tokens."""

    @property
    def bins(self) -> int:  # type: ignore[override]
        """Return N."""
        return self.config.bins

    def bin_centres(self) -> Tensor:
        """Return the actions of the bins, float32 [N], from the largest to the smallest.

        N - 1 intervals have N edges, and each edge has a token: the first two bins stand for the same action.
        """
        edges = torch.linspace(-1, 1, self.bins, dtype=torch.float64)
        centres = (edges[:-1] + edges[1:]) / 2
        return torch.cat([centres, centres[-1:]]).flip(0).float()

    def find_bins(self, actions: Tensor) -> Tensor:
        """Return the bins int64 of actions: N less the number of edges that do not lie above an action."""
        edges = torch.linspace(-1, 1, self.bins, dtype=torch.float64, device=actions.device)
        return self.bins - torch.bucketize(actions.double().clamp(-1, 1), edges, right=True)

    def bin_logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., N] from hidden states [..., W], with the rows of the output layer that are bins."""
        first = self.config.first_action_token
        return F.linear(hidden, self.language_model.lm_head.weight[first : first + self.bins])

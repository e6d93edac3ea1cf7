"""GR00T N1.7 (NVIDIA, Isaac-GR00T): Qwen3-VL reads pictures and instruction; a diffusion transformer attends to it.

Computed once per observation: `perceive` (vision tower), `encode_prefix` (the kept layers of the language model),
`context` (what the action head makes of them: norm, further layers, keys and values of each layer; the state's token).
A denoise step computes only the state's and the actions' tokens. `encode_prefix` uses no parameter outside the
vision-language model, so its result can be cached across epochs if that model is frozen.

Isaac-GR00T's flow time runs from 0 (noise) to 1 (action); ours is one minus it, and our velocity the negative of its.

Shapes: `n` rows, `V` cameras, `P` tokens of a picture, `L` prompt tokens, `T` prefix tokens, `H` actions, `D` action
dimensions, `S` state dimensions, `W` width of the language model, `E` of the action head, `F` of its features.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl_policies.gr00t import config as sizes
from embodied_rl_policies.gr00t import images, vision_language
from embodied_rl_policies.gr00t.action_head import ActionHead, find_buckets
from embodied_rl_policies.gr00t.config import Gr00tConfig
from embodied_rl_policies.native import make_qwen3_language, make_qwen3_vision
from embodied_rl_policies.vlm import check_robot, recompute_activations


class Gr00t(ForeignCheckpoint, FlowBackbone):
    """GR00T N1.7 for one of the robots that its checkpoint knows, with fresh weights until one is read."""

    Config = Gr00tConfig
    CAN_BE_EMPTY = True
    PROMPT_WORDS = ()
    CHECKPOINT_NAMES = sizes.NAMES
    CHECKPOINT_COPIES = sizes.COPIES
    CHECKPOINT_UNREAD = sizes.UNREAD
    EXPORTS_TO, EXPORTS_TO_SOURCE = ("gr00t", "lerobot"), True

    config: Gr00tConfig

    def __init__(
        self,
        config: Gr00tConfig,
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
        at least one, are in order. `auxiliary_names` must be empty.

        Raises:
            UserError: the robot or tokenizer exceeds the configured sizes, no camera is given, or auxiliary names are.
        """
        super().__init__()
        needed = {
            "action_dim": action_dim, "state_dim": state_dim, "vocabulary": vocabulary_size,
            "token_length": token_length,
        }  # fmt: skip
        check_robot("GR00T", config, needed, cameras, auxiliary_names)
        self.config = config
        tall, wide = images.find_size(*image_size, config)
        self.grid = tall // config.patch, wide // config.patch
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=config.action_dim,
            state_dim=config.state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=config.feature_width,
            context_dim=config.width + config.expert_width,
        )
        self.visual = make_qwen3_vision(config)
        self.language_model = make_qwen3_language(config, config.vocabulary or vocabulary_size)
        self.action_head = ActionHead(config)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which the network computes."""
        return self.action_head.model.proj_out_2.weight.dtype

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes from tensors where possible, else from the checkpoint's configuration and processor."""
        return sizes.read_sizes(shapes, config, given)

    @classmethod
    def check_tokenizer(cls, config: Any, tokenizer: Any) -> None:
        """Check that the chat template's text has as many tokens before the first picture as configured.

        Raises:
            UserError: it has more or fewer; the message gives the number.
        """
        found = len(tokenizer.encode(sizes.OPENING + sizes.BEGIN).ids)
        if config.picture_start and found != config.picture_start:
            raise UserError(
                f"The tokenizer has {found} tokens for {sizes.OPENING + sizes.BEGIN!r}, not "
                f"policy.picture_start={config.picture_start}: give policy.checkpoint=<folder> and policy.tokenizer="
                f"<that of Cosmos-Reason2 or Qwen3-VL>; policy.picture_start={found} if this one is right; or, for new "
                "weights, policy.picture_start=0, which leaves out the chat template, as policy=gr00t_tiny does.",
                code="tokenizer-does-not-fit",
            )

    def count_executable(self) -> int:
        """Return how many of the first actions the robot's data had; the others are predicted, and mean nothing."""
        return self.config.trained

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the vision tower."""
        return list(self.visual.parameters())

    def prefix_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the vision-language model."""
        return [*self.perception_parameters(), *self.language_model.parameters()]

    def adapted_modules(self) -> list[str]:
        """Return the attention and feed-forward maps of the language model and of the diffusion transformer."""
        return sizes.list_adapted(self.config)

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the encoders of state and actions, and of the decoder."""
        head, starts = self.action_head, ("state_encoder.", "action_encoder.", "action_decoder.", "position_embedding.")
        return [parameter for name, parameter in head.named_parameters() if name.startswith(starts)]

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return the chat template's text of a user's message: a place for each picture, then the instruction.

        Where the checkpoint wants it, instructions are in lower case and without punctuation.
        """
        if self.config.formal:
            instructions = [re.sub(r"[^\w\s]", "", text.lower()) for text in instructions]
        if not self.config.picture_start:
            return list(instructions)
        places = (sizes.BEGIN + sizes.END) * len(self.spec.cameras)
        return [f"{sizes.OPENING}{places}{text}{sizes.CLOSING}" for text in instructions]

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Compute the vision tower's tokens "image_features" [n, V, 1 + K, P, W], K those for middle layers."""
        config, views = self.config, [inputs.images[name] for name in self.spec.cameras]
        pixels = images.prepare_pictures(torch.stack(views, dim=1).flatten(0, 1), config)
        patches = images.make_patches(pixels, config.patch, config.merge)
        seen = vision_language.see(self.visual, patches, self.grid, recompute=config.gradient_checkpointing)
        return {"image_features": seen.unflatten(0, (-1, len(views)))}

    def encode_prefix(self, inputs: PolicyInput) -> dict[str, Tensor]:
        """Encode pictures and prompt with the language model; the state is not used.

        Returns:
            "mask" bool [n, T], True for existing tokens; "hidden" [n, T, W], the last kept layer's tokens.
        """
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        seen = features["image_features"].to(self.language_model.embed_tokens.weight.dtype)
        start, tokens = self.config.picture_start, inputs.tokens
        embedded = vision_language.insert_pictures(self.language_model.embed_tokens(tokens), seen[:, :, 0], start)
        nothing = torch.zeros_like(embedded[:, : tokens.shape[1]])
        layers = range(1, seen.shape[2])
        middle = [vision_language.insert_pictures(nothing, seen[:, :, index], start) for index in layers]
        exists = tokens.ne(0).flip(1).cumsum(1).flip(1) > 0  # 0 is a word, too, except at the end
        pictures = torch.ones(seen.shape[:2] + seen.shape[3:4] + (1,), dtype=torch.bool, device=tokens.device)
        mask = vision_language.insert_pictures(exists[..., None], pictures, start)[..., 0]
        inner = (self.grid[0] // self.config.merge, self.grid[1] // self.config.merge)
        places = vision_language.find_places(start, seen.shape[1], inner, tokens.shape[1], tokens.device)
        stacked = torch.stack(middle, dim=1) if middle else embedded[:, None][:, :0]
        hidden = vision_language.read(self.language_model, embedded, stacked, mask, places, self.config)
        return {"mask": mask, "hidden": hidden}

    def context(self, prefix: Mapping[str, Tensor], state: Tensor) -> Context:
        """Compute the context of all denoise steps from the output of `encode_prefix` and the state float32 [n, S].

        Returns:
            "words" and "pictures" bool [n, T], existing tokens of each kind; "key_value/i" [n, 2, h, T, d] of each even
            layer i; "state" [n, 1, E], the state's token; pooled is the mean of the existing prefix tokens that the
            layers attend to, and the state's token.
        """
        head, mask = self.action_head, prefix["mask"]
        mixer: Any = getattr(head, "vl_self_attention", None)
        blocks: Any = head.model.transformer_blocks
        tokens = head.vlln(prefix["hidden"].to(self.dtype))
        for layer in () if mixer is None else mixer.transformer_blocks:
            args = (tokens, None, mask[:, None, None], None)
            tokens = recompute_activations(layer, self.config.gradient_checkpointing, *args)
        known = head.state_encoder(sizes.encode_state(state, self.config).to(self.dtype)[:, None], self.config.robot)
        tensors = {"state": known} | self._split(mask)
        for index in range(0, self.config.expert_layers, 2):
            tensors[f"key_value/{index}"] = blocks[index].attn1.remember(tokens)
        total = (tokens.float() * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        return Context(tensors, torch.cat([total, known[:, 0].float()], dim=-1))

    def _split(self, mask: Tensor) -> dict[str, Tensor]:
        """Return which existing tokens are words, and which are those of pictures."""
        count, views = self.grid[0] * self.grid[1] // self.config.merge**2, len(self.spec.cameras)
        length = mask.shape[1] - views * count
        seen = vision_language.find_pictures(self.config.picture_start, views, count, length, mask.device)
        return {"words": mask & ~seen, "pictures": mask & seen}

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode an observation: `encode_prefix`, unless `inputs.prefix` already has its result, then `context`."""
        prefix = inputs.prefix if inputs.prefix is not None else self.encode_prefix(inputs)
        return self.context(prefix, inputs.state)

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute the velocity at x [n, H, D] and time t [n] or [n, H], and the head's features [n, H, F].

        Where actions have their own times, the state's token has that of the last one.
        """
        config, head, known = self.config, self.action_head, context.tensors
        buckets = find_buckets(t.reshape(len(t), -1), config.time_buckets)
        actions = head.action_encoder(x.to(self.dtype), buckets, config.robot)
        if config.positions:
            actions = actions + head.position_embedding.weight[: actions.shape[1]]
        tokens = torch.cat([known["state"], actions], dim=1)
        if buckets.shape[1] > 1:
            buckets = torch.cat([buckets[:, -1:], buckets], dim=1)
        time = head.model.embed_time(buckets, tokens.dtype)
        masks = {name: known[name][:, None, None] for name in ("words", "pictures")}
        masks["both"] = masks["words"] | masks["pictures"]
        for index, layer in enumerate(head.model.transformer_blocks):
            kind, kept = sizes.choose_tokens(index, config), known.get(f"key_value/{index}")
            args = (tokens, kept, masks[kind] if kind else None, time)
            tokens = recompute_activations(layer, config.gradient_checkpointing, *args)
        features = head.model.finish(tokens, time)[:, 1:]
        return -head.action_decoder(features, config.robot).float(), features.float()

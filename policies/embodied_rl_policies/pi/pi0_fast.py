"""π0-FAST (arXiv:2501.09747): PaliGemma writes a chunk as FAST's tokens, one after another.

Images, prompt and start token attend to each other, as lerobot decodes; what is written follows them and sees what lies
before. It begins with "Action: ", which is given, and ends with "|". A choice is among FAST's tokens and the end alone,
and logits are computed for these; cloning is over the whole vocabulary, as in lerobot and openpi.

Shapes: as in `network`; `N`, `M` as in `SequenceBackbone`, `k` tokens of "Action: ".
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, PolicyInput, PolicySpec, SequenceBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.pi import fast_config
from embodied_rl_policies.pi.fast import FastTokenizer
from embodied_rl_policies.pi.fast_config import Pi0FastConfig
from embodied_rl_policies.pi.network import (
    Angles,
    PaliGemma,
    attend,
    make_rotary_angles,
    project_key_value,
    run_prefix_layer,
)
from embodied_rl_policies.pi.pi05 import BINS, write_prompts
from embodied_rl_policies.vlm import recompute_activations

FOLDER = "action_tokenizer"
"""lerobot's folder of a FAST tokenizer inside of a policy's."""


class Pi0Fast(PaliGemma, SequenceBackbone):
    """π0-FAST as in lerobot."""

    Config = Pi0FastConfig
    STATISTICS = "quantiles"
    PROMPT_WORDS = ("task", "state", *map(str, range(-1, BINS)))
    LEROBOT_PROMPT = "pi0_fast_prepare_state_tokenizer_processor_step"
    EXPORTS_TO_SOURCE = True
    CHECKPOINT_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **PaliGemma.CHECKPOINT_NAMES,
        "lm_head.": ("paligemma_with_expert.paligemma.lm_head.",),
    }

    config: Pi0FastConfig

    def __init__(
        self,
        config: Pi0FastConfig,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights; see `Pi`. No parameter depends on the robot's entries.

        Raises:
            UserError: the robot has other entries than the network, no camera is given, auxiliary names are, or the
                FAST tokenizer is damaged.
        """
        for name, robot in (("action_dim", action_dim), ("state_dim", state_dim)):
            if getattr(config, name) not in (None, robot):
                message = f"policy.{name}={getattr(config, name)}, and the robot has {robot}."
                raise UserError(message, code="policy-does-not-fit")
        spec = PolicySpec(
            horizon=config.horizon,
            action_dim=action_dim,
            state_dim=state_dim,
            cameras=tuple(cameras),
            image_size=(int(image_size[0]), int(image_size[1])),
            token_length=token_length,
            feature_dim=config.width,
            context_dim=config.width,
        )
        super().__init__(config, spec, vocabulary_size, auxiliary_names)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.choices, self.longest = config.action_tokens, config.longest
        shape = config.horizon, action_dim
        self.fast = FastTokenizer(
            config.fast, config.action_tokens, scale=config.scale, offset=config.offset, shape=shape
        )

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Read the sizes from tensors where possible, else from lerobot's configuration and tokenizers."""
        return fast_config.read_sizes(shapes, config, given)

    @classmethod
    def check_tokenizer(cls, config: Pi0FastConfig, tokenizer: Any) -> None:
        """Check that the tokenizer of the prompt has the ids of the configuration."""
        fast_config.check_tokenizer(config, tokenizer)

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the entries of lerobot's configuration, which decodes as many actions as it executes."""
        config = self.config
        stored = {} if self.source is None else json.loads(self.source.files.get("config.json", "{}"))
        written = config.longest + len(config.opening)
        names = {key: stored[key] for key in ("text_tokenizer_name", "action_tokenizer_name") if key in stored}
        return names | {
            "paligemma_variant": "gemma_2b",
            "dtype": "float32",
            "image_resolution": [config.resolution] * 2,
            "n_action_steps": config.horizon,
            "max_action_tokens": written + 1,  # with the start token
            "max_decoding_steps": written,
            "fast_skip_tokens": config.skipped,
        }

    def lerobot_steps(self) -> dict[str, dict[str, Any]]:
        """Return lerobot's step that makes tokens of actions."""
        config = self.checkpoint_config("lerobot", 1)
        settings = {key: config[key] for key in ("max_action_tokens", "fast_skip_tokens")} | {"trust_remote_code": True}
        settings["action_tokenizer_name"] = config.get("action_tokenizer_name", FOLDER)
        artifacts = {"action_tokenizer_name": FOLDER}
        return {"action_tokenizer_processor": {"config": settings, "artifacts": artifacts}}

    def adapted_modules(self) -> list[str]:
        """Return the attention and feed-forward maps of the language model."""
        parts = [f"self_attn.{name}_proj" for name in "kvqo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
        return [f"language.layers.{index}.{part}" for index in range(self.config.layers) for part in parts]

    def prompts(self, instructions: Sequence[str], state: Tensor) -> list[str]:
        """Return prompts in openpi's format, as π0.5's but for their end; see `Pi05.prompts`."""
        return write_prompts(instructions, state)

    def encode(self, inputs: PolicyInput) -> Context:
        """Run the language model over images, prompt and start token.

        Returns:
            "key_value" [n, layers, 2, 1, T, d]; "mask" bool [n, T]; pooled is the state of the start token, which sees
            all.
        """
        features = inputs.features if inputs.features is not None else self.perceive(inputs)
        images, words = features["image"].flatten(1, 2), F.pad(inputs.tokens, (0, 1), value=self.config.start_token)
        hidden = torch.cat([images, self.language.embed_tokens(words)], dim=1)
        mask = F.pad(F.pad(inputs.tokens != 0, (images.shape[1], 0), value=True), (0, 1), value=True)
        angles = make_rotary_angles(mask.cumsum(dim=1) - 1, self.config.head_dim)
        kept: list[Tensor] = []
        for layer in self.language.layers:
            less = self.config.gradient_checkpointing
            hidden, both = recompute_activations(run_prefix_layer, less, layer, hidden, mask, angles)
            kept.append(both)
        pooled = self.language.norm(hidden[:, -1])
        return Context({"key_value": torch.stack(kept, dim=1), "mask": mask}, pooled.float())

    def choose_tokens(self, context: Context, choose: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Choose tokens until all rows have ended; each is run once, with cached keys and values."""
        memory, present = list(context.tensors["key_value"].unbind(1)), context.tensors["mask"]
        rows, ids = self._find_rows(), self._repeat_opening(len(context))
        tokens = torch.full((len(context), self.longest), self.choices, device=ids.device)
        ended = tokens.new_zeros(len(context), dtype=torch.bool)
        for place in range(self.longest):
            hidden, memory = self._follow(memory, present, ids)
            present = F.pad(present, (0, ids.shape[1]), value=True)
            chosen = choose(F.linear(hidden[:, -1], rows), place)
            tokens[:, place] = torch.where(ended, self.choices, chosen)
            ended |= chosen == self.choices
            if ended.all():
                break
            ids = self._find_ids(tokens[:, place, None])
        return tokens

    def token_logits(self, context: Context, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits [n, m, N + 1] of tokens [n, m] in one pass, and the state [n, 1, W] before the first."""
        ids = torch.cat([self._repeat_opening(len(tokens)), self._find_ids(tokens[:, :-1])], dim=1)
        hidden = self._follow(context.tensors["key_value"].unbind(1), context.tensors["mask"], ids)[0]
        hidden = hidden[:, len(self.config.opening) - 1 :]
        return F.linear(hidden[:, : tokens.shape[1]], self._find_rows()), hidden[:, :1]

    def cloning_error(self, context: Context, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy over the vocabulary of "Action: ", of a chunk's tokens and of its end, [n, K]."""
        tokens = self.write_actions(actions)
        counted = self.find_counted(tokens)
        longest, opening = int(counted.sum(dim=1).amax()), self._repeat_opening(len(tokens))
        ids = torch.cat([opening, self._find_ids(tokens[:, :longest])], dim=1)
        hidden = self._follow(context.tensors["key_value"].unbind(1), context.tensors["mask"], ids[:, :-1])[0]
        logits = self.lm_head(torch.cat([context.pooled[:, None].to(hidden.dtype), hidden], dim=1)).float()
        error = F.cross_entropy(logits.movedim(-1, 1), ids, reduction="none")
        return error, F.pad(counted[:, :longest], (opening.shape[1], 0), value=True)

    def write_actions(self, actions: Tensor) -> Tensor:
        """Return the tokens int64 [n, M] of actions [n, H, D]; those beyond M, the end too, are left out."""
        tokens = torch.full((len(actions), self.longest), self.choices)
        for row, ids in zip(tokens, self.fast.encode(actions.detach().cpu().numpy()), strict=True):
            row[: len(ids)] = torch.tensor(ids[: self.longest])
        return tokens.to(actions.device)

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """Return the actions float32 [n, H, D] of tokens [n, M]; see `FastTokenizer.decode`."""
        rows = [[choice for choice in row if choice < self.choices] for row in tokens.tolist()]
        return torch.from_numpy(self.fast.decode(rows)).to(tokens.device)

    def _follow(self, memory: Sequence[Tensor], present: Tensor, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run the language model over ids int64 [n, t] that follow what a memory holds.

        Args:
            memory: keys and values [n, 2, 1, s, d] of each layer.
            present: bool [n, s], which of them count.
            ids: of the vocabulary.

        Returns:
            States [n, t, W] after the last layer's norm, and the memory with these tokens.
        """
        steps = ids.shape[1]
        order = present.new_ones(steps, steps).tril().expand(len(ids), -1, -1)
        mask = torch.cat([present[:, None].expand(-1, steps, -1), order], dim=-1)[:, None]
        positions = present.sum(dim=1, keepdim=True) + torch.arange(steps, device=ids.device)
        angles, kept = make_rotary_angles(positions, self.config.head_dim), []
        hidden, less = self.language.embed_tokens(ids), self.config.gradient_checkpointing
        for layer, before in zip(self.language.layers, memory, strict=True):
            hidden, both = recompute_activations(_follow_layer, less, layer, hidden, before, mask, angles)
            kept.append(both)
        return self.language.norm(hidden), kept

    def _find_rows(self) -> Tensor:
        """Return the rows [N + 1, W] of the output layer that are choices."""
        config, weight = self.config, self.lm_head.weight
        first = config.last_action_token + 1 - self.choices
        return torch.cat([weight[first : first + self.choices].flip(0), weight[config.end_token, None]])

    def _find_ids(self, tokens: Tensor) -> Tensor:
        """Return the ids of the vocabulary of choices."""
        return torch.where(tokens < self.choices, self.config.last_action_token - tokens, self.config.end_token)

    def _repeat_opening(self, rows: int) -> Tensor:
        """Return the ids int64 [n, k] of "Action: "."""
        return torch.tensor(self.config.opening, device=self.lm_head.weight.device).expand(rows, -1)


def _follow_layer(layer: Any, hidden: Tensor, before: Tensor, mask: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    normed = layer.input_layernorm(hidden)
    own = torch.stack(project_key_value(layer, normed, angles), dim=1)
    both = torch.cat([before.to(own.dtype), own], dim=3)
    hidden = hidden + attend(layer, normed, both[:, 0], both[:, 1], mask, angles)
    return hidden + layer.mlp(layer.post_attention_layernorm(hidden)), both

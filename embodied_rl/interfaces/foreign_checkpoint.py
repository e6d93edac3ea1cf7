"""The information a network provides so that checkpoints of other projects can be read and written."""

from collections.abc import Mapping
from typing import Any, ClassVar


class ForeignCheckpoint:
    """A mixin for a `Backbone` with weights that other projects publish, too.

    Attributes:
        CHECKPOINT_NAMES: prefix of our parameter names → prefixes in their checkpoints; the first is used for writing.
            The outermost module's name is not part of them.
        CHECKPOINT_OUTERMOST: name of the outermost module, with a dot, which their names may begin with.
        CHECKPOINT_COPIES: their name of a second copy of a weight → their name of the first copy.
        CHECKPOINT_UNREAD: patterns of their names for tensors, besides `unread_shapes`, that this network never reads
            but keeps for export.
        LEROBOT_PROMPT: lerobot's name of the processor step that writes the prompts; empty if its format is another.
        EXPORTS_TO: formats that it can be exported to.
        EXPORTS_TO_SOURCE: whether it is exported only to the format of the checkpoint that it was imported from.
        HUB_TOKENIZER: name of the published tokenizer on the hub; empty if it is not known by its tokens.
        HUB_TOKENS: tokens of that tokenizer → their ids, by which it is recognised.
    """

    CHECKPOINT_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    CHECKPOINT_OUTERMOST: ClassVar[str] = "model."
    CHECKPOINT_COPIES: ClassVar[Mapping[str, str]] = {}
    CHECKPOINT_UNREAD: ClassVar[tuple[str, ...]] = ()
    LEROBOT_PROMPT: ClassVar[str] = ""
    EXPORTS_TO: ClassVar[tuple[str, ...]] = ("lerobot", "openpi", "peft")
    EXPORTS_TO_SOURCE: ClassVar[bool] = False
    HUB_TOKENIZER: ClassVar[str] = ""
    HUB_TOKENS: ClassVar[Mapping[str, int]] = {}

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the keys of `Config` that a checkpoint of another project determines.

        Args:
            shapes: shapes of the checkpoint's tensors, by this network's names.
            config: content of the checkpoint's configuration file.
            given: keys that the user gave.

        Raises:
            UserError: the checkpoint belongs to another kind of network, or lacks information.
        """
        raise NotImplementedError

    @classmethod
    def check_tokenizer(cls, config: Any, tokenizer: Any) -> None:
        """Check that a `tokenizers.Tokenizer` fits a configuration.

        Raises:
            UserError: it does not.
        """

    def unread_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name → shape of tensors that other projects' loaders require although no forward pass uses them."""
        return {}

    def checkpoint_statistics(self) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
        """Return camera → means and deviations of red, green and blue, for networks that normalise images by them."""
        return {}

    def lerobot_steps(self) -> Mapping[str, Mapping[str, Any]]:
        """Return further steps that lerobot takes before the network, after the prompt's tokens: name → entries."""
        return {}

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the entries specific to this network in a configuration of format `form`; `steps`: K, denoise steps.

        Raises:
            UserError: the format does not support this network.
        """
        return {}

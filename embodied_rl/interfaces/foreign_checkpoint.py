"""What a network says of itself so that the checkpoints of other projects can be read and written."""

from collections.abc import Mapping
from typing import Any, ClassVar


class ForeignCheckpoint:
    """Mixed into a `FlowBackbone` whose weights other projects publish, too.

    Attributes:
        CHECKPOINT_NAMES: start of our parameter names → how theirs start; the first is how it is written. A leading
            "model." is not part of them.
        CHECKPOINT_COPIES: their names of second copies of a weight → the name of the first.
        CHECKPOINT_UNREAD: patterns of their names that this network never reads, and that are carried along.
        LEROBOT_PROMPT: lerobot's name of the step that writes its prompts.
    """

    CHECKPOINT_NAMES: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    CHECKPOINT_COPIES: ClassVar[Mapping[str, str]] = {}
    CHECKPOINT_UNREAD: ClassVar[tuple[str, ...]] = ()
    LEROBOT_PROMPT: ClassVar[str] = ""

    @classmethod
    def checkpoint_sizes(
        cls, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Keys of `Config` that a checkpoint of another project decides.

        Args:
            shapes: its tensors' shapes, by this network's names.
            config: its configuration file.
            given: keys that the user gave.

        Raises:
            UserError: it is of another kind of network, or says too little.
        """
        raise NotImplementedError

    def unread_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Their names → shapes of tensors that loaders of other projects ask for and no forward pass reads."""
        return {}

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """What the configuration file of format `form` says of this network alone; `steps`: K, denoise steps.

        Raises:
            UserError: the format has no such network.
        """
        return {}

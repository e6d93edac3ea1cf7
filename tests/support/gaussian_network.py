"""A small network that predicts actions as numbers, with the perception of `pocket`."""

from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, GaussianBackbone
from embodied_rl_policies.pocket import Pocket, PocketPrefix


class SmallGaussian(PocketPrefix, GaussianBackbone):
    """A linear map of the pooled prefix."""

    Config = Pocket.Config

    def _build_head(self) -> None:
        self.mean = nn.Linear(self.config.width, self.spec.horizon * self.spec.action_dim)

    def action_mean(self, context: Context) -> tuple[Tensor, Tensor]:
        mean = self.mean(context.pooled).unflatten(1, (self.spec.horizon, self.spec.action_dim))
        return mean, context.pooled[:, None].expand(-1, self.spec.horizon, -1)

"""The error of a dataset that cannot be used. Imports nothing of the other files here."""

from embodied_rl.interfaces.errors import UserError


class DatasetError(UserError):
    """Raised if a dataset cannot be used as asked; the message names the dataset, the reason and the remedy."""

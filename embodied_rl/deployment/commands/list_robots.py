"""`embodied-rl list`, where the training platform is not installed: the robots that are described here."""

from collections.abc import Sequence

from embodied_rl.cli.command import make_option_parser, read_config_folder
from embodied_rl.cli.text import print_columns
from embodied_rl.config.option_files import list_options
from embodied_rl.interfaces.errors import UserError


def run(words: Sequence[str]) -> int:
    """Print the name of each robot, and what its file says first.

    Raises:
        UserError: a word that is not `robots`; what else can be listed needs the package embodied-rl.
    """
    typed, words = make_option_parser().parse_known_args(words)
    if other := [word for word in words if word not in ("robots", "--help", "-h")]:
        raise UserError(
            f"list {other[0]}: without the package embodied-rl there are only robots: embodied-rl list robots.",
            code="list-unknown",
        )
    print_columns([(item.name, item.summary) for item in list_options("robot", read_config_folder(typed.config_dir))])
    return 0

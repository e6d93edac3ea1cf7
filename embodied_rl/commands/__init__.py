"""The subcommands of `embodied-rl`, one per file."""

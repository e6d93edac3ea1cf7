"""A command of the command line. Distributions offer commands with entry points in the group `embodied_rl.commands`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Words:
    """The plain words after a command: the key that takes them, the noun for one word, and whether many are allowed."""

    key: str
    called: str
    many: bool = False


@dataclass(frozen=True)
class Command:
    """A command: the first word after `embodied-rl`, or the first two.

    Attributes:
        name: one word, or two, of which the first names a group of commands.
        summary: one line for the overview.
        schema: "module:Class" of its configuration; None if the body takes the words as typed.
        body: "module:function", imported when called, with the frozen configuration as the only argument.
        examples: typical arguments after the name.
        check: "module:function" that `--dry-run` calls to find what would make the command fail. It returns rows of
            text to print, or None.
        config: the YAML to start from; None if the dataclass alone defines everything.
        values: keys that hold a plain value although a folder of YAML has the same name.
        words: the meaning of plain words; None if the command takes none.
        common: the keys that `--help` shows; empty for all.
        compare: "module:function" that compares the runs of a sweep, called with their folders and the sweep's folder;
            None if they write no reports.
        preparation: "module:Class" of the `embodied_rl.cli.preparation.Preparation` of its configuration.
        elsewhere: keys that another command has: key → (command, its key), such as `collect from=`.
        replaces: takes the place of another distribution's command of this name.
    """

    name: str
    summary: str
    schema: str | None
    body: str
    examples: tuple[str, ...] = ()
    check: str | None = None
    config: str | None = None
    values: tuple[str, ...] = ()
    words: Words | None = None
    common: tuple[str, ...] = ()
    compare: str | None = None
    preparation: str = "embodied_rl.cli.preparation:Preparation"
    elsewhere: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    replaces: bool = False

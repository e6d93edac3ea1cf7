"""Complete command lines in bash and zsh. Imports no torch, and no plug-in.

`embodied-rl completion bash` prints a script, which calls `embodied-rl completion words <line>` when Tab is pressed.
"""

from collections.abc import Sequence
from contextlib import suppress

from embodied_rl.cli.command import Command, find_command_name, list_commands, list_groups
from embodied_rl.cli.documentation import Key, list_plugin_keys, list_schema_keys
from embodied_rl.cli.help import HELP_OPTIONS, KINDS, compose_values
from embodied_rl.config import plugins
from embodied_rl.config.option_files import list_default_choices, list_experiments, list_options
from embodied_rl.interfaces.errors import UserError

_OPTIONS = (*HELP_OPTIONS, "--cfg", "--dry-run", "--json", "--config-dir", "-m")
# In bash "=" separates words, unless the user changed that: then only what follows it is replaced.
_SCRIPTS = {
    "bash": """\
_embodied_rl() {
    local IFS=$'\\n' line="${COMP_LINE:0:$COMP_POINT}" current="${COMP_WORDS[$COMP_CWORD]}"
    COMPREPLY=($(embodied-rl completion words "$line" 2>/dev/null))
    [[ "${COMPREPLY[*]}" != *= ]] || compopt -o nospace
    [[ "${line##* }" != *=* || "$current" == ?*=* ]] || COMPREPLY=("${COMPREPLY[@]#*=}")
}
complete -o default -F _embodied_rl embodied-rl
""",
    "zsh": """\
(( $+functions[compdef] )) || { autoload -Uz compinit; compinit }
_embodied_rl() {
    local -a found=(${(f)"$(embodied-rl completion words "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)"})
    (( $#found )) || { compset -P '*='; _files; return }
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
compdef _embodied_rl embodied-rl
""",
}


def run(words: Sequence[str]) -> int:
    """Print the script of a shell; or, for the script, what may continue a line, one whole word a line.

    Raises:
        UserError: the shell is not known.
    """
    if len(words) == 2 and words[0] == "words":
        for word in complete_line(words[1]):
            print(word)
        return 0
    usage = (
        f"usage: embodied-rl completion {'|'.join(_SCRIPTS)}",
        'in ~/.bashrc (zsh: ~/.zshrc): eval "$(embodied-rl completion bash)"',
    )
    if any(word in HELP_OPTIONS for word in words):
        print("\n".join(usage))
        return 0
    if len(words) != 1 or words[0] not in _SCRIPTS:
        raise UserError("; ".join(usage), code="shell-unknown")
    print(_SCRIPTS[words[0]], end="")
    return 0


def complete_line(line: str) -> list[str]:
    """List the words that the last word of a line, `embodied-rl …`, may become; none for files and free values."""
    words = [*line.split(), *[""] * line.endswith(" ")][1:]
    *typed, started = words or [""]
    if not typed:
        found = dict.fromkeys(name.split()[0] for name in list_commands())
    elif typed[0] in list_groups() and len(typed) == 1:
        found = [name.split()[1] for name in list_commands() if name.startswith(f"{typed[0]} ")]
    else:
        name, rest = find_command_name(typed)
        command = list_commands().get(name)
        found = [] if command is None or command.schema is None else _list_words(command, rest, started)
    return [word for word in found if word.startswith(started)]


def _list_words(command: Command, typed: Sequence[str], started: str) -> list[str]:
    """List options, `key=` of keys and `key=value` of choices that may follow the typed words of a command."""
    if started.startswith("-"):
        return list(_OPTIONS)
    groups = list_default_choices(command.config) if command.config else {}
    key, equals, _ = started.partition("=")
    if equals and key in groups:
        return [f"{key}={name}" for name in _list_names(command, key)]
    keys = [*list_schema_keys(str(command.schema)), *_list_keys_of_plugin(command, typed, key)]
    if equals:
        return [f"{key}={value}" for each in keys if each.name == key for value in each.choices]
    shown = command.common if command.common and not started else [each.name for each in keys]
    return [f"{name}=" for name in (*groups, *shown)]


def _list_names(command: Command, group: str) -> list[str]:
    if group == "experiment":
        return [each.name for each in list_experiments() if each.command in (command.name, command.config)]
    return [option.name for option in list_options(group)]


def _list_keys_of_plugin(command: Command, typed: Sequence[str], key: str) -> list[Key]:
    """List the keys of the plug-in whose node a key begins with, as the typed words choose it."""
    node, dot, _ = key.partition(".")
    if not dot or node not in KINDS:
        return []
    with suppress(UserError):  # such as a mistake in an earlier word, which the command will report
        name = compose_values(command, typed).get(f"{node}.name")
        return list_plugin_keys(plugins.find_path(KINDS[node], str(name)), node) if name else []
    return []

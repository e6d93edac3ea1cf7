"""The console script. The first word selects the command; the rest are Hydra overrides and a few options."""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import RunFailed, TransportError, UserError
from embodied_rl.interfaces.version import __version__
from embodied_rl.system.signals import count_stops, find_stop_code
from embodied_rl.system.untrusted_files import make_printable

FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130
CLOSED_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after `embodied-rl`; None takes them from `sys.argv`.

    Returns:
        The exit code: 0; 1 if the command found a problem or lost a process that it needs; 2 for a mistake in the typed
        command; 128 + its number where a signal ended the command, also where it first saved its work. A process of
        torchrun that saved its work returns 0: torchrun would take another code for a crash.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # such as "…" in ASCII
            stream.reconfigure(errors="replace")
    for entry in entry_points(group="embodied_rl.launchers"):
        code = entry.load()(lambda: _run(words), lambda: _dispatch(words))
        if code is not None:
            return code
    before = count_stops()
    code = _run(words)
    return (find_stop_code(before) or code) if code in (0, INTERRUPTED) else code


def _run(arguments: list[str]) -> int:
    try:
        with announce_end():
            code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, closed the pipe
        _discard_output()
        return CLOSED_PIPE
    except SystemExit as end:  # rich turns a closed pipe into this
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        return CLOSED_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _discard_output()
        print("embodied-rl: the output cannot be written: no space left on device.", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("embodied-rl: interrupted", file=sys.stderr)
        return INTERRUPTED
    except UserError as error:
        _print_error(error)
        return USER_ERROR
    except RuntimeError as error:
        from embodied_rl.interfaces.sim import Unavailable

        if not isinstance(error, RunFailed | Unavailable | TransportError):
            raise
        _print_error(error)
        return FAILED


@contextmanager
def announce_end() -> Iterator[None]:
    """Print one line if SIGTERM or SIGHUP ends this process in the context.

    Handlers that a command sets in the context replace this one; ignored signals, as under nohup, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: object) -> None:
        text = f"embodied-rl: ended by {signal.Signals(number).name}; what was not saved by now is lost.\n"
        with suppress(OSError):  # the terminal is gone
            os.write(2, text.encode())
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    default = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for number in default:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in default:
            signal.signal(number, signal.SIG_DFL)


def _discard_output() -> None:
    """Redirect standard output to /dev/null, because the interpreter flushes its buffer at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _print_error(error: Exception) -> None:
    """Print an error behind its code, and its notes, such as that a robot was not brought to rest."""
    code = f"[{error.code}] " if isinstance(error, UserError) and error.code else ""
    for line in (f"{code}{error}", *getattr(error, "__notes__", ())):
        print(f"embodied-rl: {make_printable(line)}", file=sys.stderr)


def _dispatch(arguments: list[str]) -> int:
    from embodied_rl.cli import help as help_text  # a broken table of commands is a mistake with a message
    from embodied_rl.cli.command import find_command_name, list_commands, list_groups

    if not arguments or arguments[0] in (*help_text.HELP_OPTIONS, "help"):
        help_text.print_overview()
        return 0
    commands = list_commands()
    name, rest = find_command_name(arguments)
    if name == "--version":
        print(f"embodied-rl {__version__}")
        return 0
    if name in list_groups() and (not rest or rest[0] in help_text.HELP_OPTIONS):
        help_text.print_group_help(name)
        return 0
    if name not in commands:
        typed = " ".join([name, *rest[:1]]) if name in list_groups() else name
        suggestion = suggest_name(typed, list(commands)) or " `embodied-rl --help` lists all."
        raise UserError(f"unknown command '{typed}'.{suggestion}", code="command-unknown")
    if any(word in help_text.HELP_OPTIONS for word in rest) and commands[name].schema is not None:
        help_text.print_command_help(commands[name], rest)
        return 0
    from embodied_rl.cli import run_command

    return run_command.run_command(commands[name], rest)

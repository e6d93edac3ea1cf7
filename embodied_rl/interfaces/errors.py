"""The exceptions that are shown without a traceback. Imports the standard library only."""


class UserError(ValueError):
    """A mistake by the user, shown without a traceback.

    The message names the mistake, its place (key, file, topic) and the remedy. `code` identifies the mistake for
    programs and tests: lower-case words joined by hyphens, such as "checkpoint-damaged". Plug-ins raise it, too. Any
    other `ValueError` is a bug in the program and is shown with a traceback.
    """

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code


class TransportError(RuntimeError):
    """A robot's middleware failed: it did not accept a message, or the transport is closed."""


class RunFailed(RuntimeError):  # noqa: N818
    """A process that a run needs is gone or cannot continue. The message is complete and needs no traceback."""

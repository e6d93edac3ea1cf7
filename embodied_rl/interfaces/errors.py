"""The exceptions that are shown without a traceback. Imports the standard library only."""


class UserError(ValueError):
    """A mistake by the user, shown without a traceback.

    The message says what is wrong, where (key, file, topic), and what to do. `code` identifies the mistake
    for programs and tests, whatever the words of the message: lower-case words joined by hyphens, such as
    "checkpoint-damaged". Plug-ins raise it, too. Any other `ValueError` is a bug in the program and is shown with a
    traceback.
    """

    def __init__(self, message: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code


class TransportError(RuntimeError):
    """A robot's middleware failed: a message was not taken, or the transport is closed."""

"""The exception for mistakes of the user. Imports the standard library only."""


class UserError(ValueError):
    """A mistake by the user, shown without a traceback.

    The message says what is wrong, where (key, file, topic), and what to do. Plug-ins raise it, too. Any other
    `ValueError` is a bug in the program and is shown with a traceback.
    """

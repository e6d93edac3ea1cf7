"""What is raised for the user. The standard library only."""


class UserError(ValueError):
    """A mistake of the user's, shown without a traceback.

    The message says what is wrong, where (key, file, topic), and what to do. Plug-ins raise it, too. Any other
    `ValueError` is a fault of the program, and is shown as one.
    """

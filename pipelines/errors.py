"""The one exception that means "the user has to change something"."""


class InputError(ValueError):
    """Input that cannot be used: a flag, a file, a run directory.

    The message is one line that names the argument, the rule and the value received. Command lines
    print it after `error: ` and exit with status 2; nothing has been written or lost by then.
    """

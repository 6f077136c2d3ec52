"""The one exception that means "the user has to change something"."""


class InputError(ValueError):
    """Input that cannot be used: a flag, a file, a run directory.

    The message is one line that names the argument, the rule and the value received. Command lines
    print it after `error: ` and exit with status 2; nothing has been written or lost by then.
    """


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: Exception) -> str:
    """What an error of TensorFlow says, in one line and without the node that it occurred in.

    Args:
        error: has a `message`, such as "{{function_node ...}} No space left on device".
    """
    message = str(getattr(error, "message", "")).strip()
    if not message:
        return first_line(error)
    return " ".join(message.splitlines()[0].rpartition("}} ")[2].split())

"""The one exception that means "the user has to change something", and words for its message."""


class InputError(ValueError):
    """Input that cannot be used: a flag, a file, a run directory.

    The message is one line that names the argument, the rule and the value received. Command lines
    print it after `error: ` and exit with status 2; nothing has been written or lost by then.
    """


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def reason_of(error: Exception) -> str:
    """What a TensorFlow error says, in one line, without the names of the graph around it.

    TensorFlow writes them in double braces before the reason: `{{node Save}} disk full`.
    """
    message = str(getattr(error, "message", "") or error).strip()
    line = (message.splitlines() or [type(error).__name__])[0]
    return " ".join(line.rpartition("}} ")[2].split())

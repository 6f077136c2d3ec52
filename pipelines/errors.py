"""The one exception that means "the user has to change something", and what other errors say in one
line."""

import re


class InputError(ValueError):
    """Input that cannot be used: a flag, a file, a run directory.

    The message is one line that names the argument, the rule and the value received. Command lines
    print it after `error: ` and exit with status 2; nothing has been written or lost by then.
    """


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def quoted(text: str, length: int = 300) -> str:
    """What somebody else says, fit for a message: one line, not too long, nothing but text.

    Terminals obey control characters, and none can show lone surrogates: both become U+FFFD.

    Args:
        text: anything.
        length: in characters, beyond which it is cut.
    """
    line = " ".join(text[: 2 * length].split())
    line = re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", line)
    return line if len(line) <= length and len(text) <= 2 * length else f"{line[:length]}..."


def reason_of(error: Exception) -> str:
    """What an error of TensorFlow says, in one line and without the node that it occurred in.

    Args:
        error: has a `message`, such as "{{function_node ...}} No space left on device", or one
            that ends with the reason: "Graph execution error: ... assertion failed: [...] [...]".
    """
    message = str(getattr(error, "message", "")).strip()
    if not message:
        return first_line(error)
    lines = [line for line in message.splitlines() if line and not line.lstrip().startswith("[[")]
    reason = lines[-1] if message.startswith("Graph execution error") else lines[0]
    if found := re.search(r"assertion failed: \[(.*)\]", reason):
        reason = found[1].replace("] [", " ")  # the values that were asserted, each in brackets
    return " ".join(reason.rpartition("}} ")[2].split())

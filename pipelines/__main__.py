"""Lists the command lines, and runs them: python -m pipelines [command [flags]]"""

import sys
from collections.abc import Sequence

from pipelines.command_line import run
from pipelines.commands import COMMANDS, run_command
from pipelines.errors import InputError
from pipelines.flag_parser import version

_USAGE = """usage: python -m pipelines COMMAND [flags], or python -m pipelines.COMMAND [flags]

{commands}

python -m pipelines COMMAND --help lists the flags of a command, --version tells the versions."""


def main(arguments: Sequence[str]) -> None:
    """Prints the list; the only argument that is no command's name may be one of these flags."""
    if arguments and arguments[0] in ("-v", "--version"):
        print(version())
    elif arguments and arguments[0] not in ("-h", "--help"):
        names = ", ".join(COMMANDS)
        raise InputError(f"the command must be one of {names}, got {arguments[0]}")
    else:
        width = max(map(len, COMMANDS))
        rows = [f"  {name:{width}}  {what}" for name, what in COMMANDS.items()]
        print(_USAGE.format(commands="\n".join(rows)))


if __name__ == "__main__":
    command = "".join(sys.argv[1:2]).replace("-", "_")
    if command in COMMANDS:
        del sys.argv[1]
        run_command(command)
    run(main)

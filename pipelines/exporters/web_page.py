"""The page around a model, built by Node from the sources in `web/` of a checkout.

Packages, whose versions `web/package-lock.json` has, are installed in `web/node_modules` when they
are needed first. Nothing here needs TensorFlow.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import InputError, quoted
from pipelines.files.locks import one_at_a_time
from pipelines.progress import progress

SOURCES = Path(__file__).resolve().parents[2] / "web"
_OLDEST_NODE = 20


def check_can_build() -> None:
    """Checks that the sources and Node are there.

    Raises:
        InputError: they are not.
    """
    if not (SOURCES / "build.mjs").is_file():
        raise InputError(
            "format web needs a checkout, since an installed package has no sources of the page: "
            "run it there, as python -m pipelines.export"
        )
    hint = f"install Node.js {_OLDEST_NODE} or newer with npm"
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise InputError(f"format web needs {program}, which is not installed: {hint}")
    version = _run("node", "--version").strip()
    number = re.match(r"v(\d+)\.", version)
    if not number or int(number[1]) < _OLDEST_NODE:
        raise InputError(f"format web needs a newer Node.js than {version}: {hint}")


def install_packages(with_browser: bool = False) -> None:
    """Installs what building needs, unless it is there.

    Args:
        with_browser: what opens the page in a browser as well, for tests and benchmarks.

    Raises:
        InputError: see `check_can_build`, or it cannot be installed.
    """
    check_can_build()
    kinds = ("dependencies", "devDependencies") if with_browser else ("dependencies",)
    with one_at_a_time(SOURCES):
        if not _is_installed(kinds):
            with progress("installing the packages of the web page"):
                omitted = () if with_browser else ("--omit=dev",)
                _run("npm", "ci", *omitted, "--ignore-scripts", "--no-audit", "--loglevel=error")


def build_page(site: Path) -> None:
    """Adds the page to a directory that has the model and its `settings.json`.

    Raises:
        InputError: building fails.
    """
    _run("node", "build.mjs", str(site.resolve()))


def _is_installed(kinds: Sequence[str]) -> bool:
    """Whether these packages are there, in the versions of the lock file."""
    wanted = json.loads((SOURCES / "package.json").read_text(encoding="utf-8"))
    return all(
        _installed_version(name) == version
        for kind in kinds
        for name, version in wanted[kind].items()
    )


def _installed_version(name: str) -> str | None:
    path = SOURCES / "node_modules" / name / "package.json"
    return json.loads(path.read_text(encoding="utf-8"))["version"] if path.is_file() else None


def _run(program: str, *arguments: str) -> str:
    """What a program prints that runs in `web/`."""
    command = [shutil.which(program) or program, *arguments]
    result = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        said = quoted(result.stderr or result.stdout)
        raise InputError(f"{program} {arguments[0]} has failed in {SOURCES}: {said}")
    return result.stdout

"""Node, its packages for tests of the web page, and Chromium; tests without them are skipped."""

import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.errors import InputError
from pipelines.exporters.web_page import SOURCES, install_packages

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def need_node() -> None:
    """Skips a test where the page cannot be built, and installs what tests of it need."""
    try:
        install_packages(with_browser=True)
    except InputError as error:
        pytest.skip(str(error))


def need_browser() -> None:
    """Skips a test where there is no Chromium either."""
    if shutil.which(CHROMIUM) is None:
        pytest.skip(
            f"there is no Chromium in {CHROMIUM}: apt-get install chromium, or set CHROMIUM"
        )
    need_node()


def run_node(script: str, given: object, *arguments: str | Path):
    """What a script of `web/test` prints; it takes and gives JSON."""
    command = ["node", str(SOURCES / "test" / script), *map(str, arguments)]
    result = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class _Handler(SimpleHTTPRequestHandler):
    """Keeps the paths that are asked for, and is silent."""

    def __init__(self, *arguments, paths: list[str], **values):
        self._paths = paths
        super().__init__(*arguments, **values)

    def do_GET(self):
        self._paths.append(self.path)
        super().do_GET()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """A static server on the loopback address: its URL, and the paths it has been asked for."""
    paths: list[str] = []
    handler = partial(_Handler, directory=str(directory), paths=paths)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", paths
        finally:
            server.shutdown()
            thread.join()

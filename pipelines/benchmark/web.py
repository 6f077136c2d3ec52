"""The exported page beside Python: python -m pipelines.benchmark.web --run_dir DIR --source F

The same file in Chromium, by LiteRT.js, and in this process, by ai-edge-litert, with as many
threads each, take turns over the same sentences, other ones in each turn: the page remembers what
it has translated. Its start is from navigation to the first translation, in a browser that has
never seen it; the 0.2 s for which it waits for another key are part of it.
"""

import json
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from pipelines.benchmark.measuring import (
    export_silently,
    ratios,
    seconds_in_turns,
    write_results,
)
from pipelines.command_line import run
from pipelines.corpora.text_files import read_lines
from pipelines.errors import InputError, quoted
from pipelines.exporters.web_page import SOURCES, install_packages
from pipelines.flag_checks import check_positive
from pipelines.flag_parser import parse_flags
from pipelines.translators.packed_model import PACKED_NAME
from pipelines.translators.tflite import TFLiteTranslator

QUANTIZATIONS = ("int8", "none")


@dataclass(frozen=True)
class Benchmark:
    """What to measure."""

    run_dir: str
    """the directory of a training run"""
    source: str
    """text to translate, a sentence a line"""
    sentences: int = 50
    """of the text in each turn"""
    turns: int = 5
    """times that each of both translates, and that the page is opened"""
    threads: int = 1
    """of each; the page takes one or two"""
    output: str | None = None
    """a JSON file to write"""

    def __post_init__(self):
        check_positive(self, "sentences", "turns")
        if self.threads not in (1, 2):
            raise InputError(f"threads must be 1 or 2, got {self.threads}")


def main(arguments: Sequence[str]) -> None:
    flags = parse_flags(Benchmark, __doc__, "python -m pipelines.benchmark.web", arguments)
    lines = list(dict.fromkeys(line for line in read_lines(flags.source) if line.strip()))
    needed = flags.sentences * (flags.turns + 1)  # the first turn does not count
    if len(lines) < needed:
        raise InputError(
            f"source must have {needed} different lines, sentences for each turn and for one more, "
            f"but {flags.source} has {len(lines)}"
        )
    install_packages(with_browser=True)
    parts = [lines[i : i + flags.sentences] for i in range(0, needed, flags.sentences)]
    records = []
    with tempfile.TemporaryDirectory() as directory:
        for quantization in QUANTIZATIONS:
            site = Path(directory) / quantization
            export_silently(flags.run_dir, "web", site, quantization)
            records.append({"quantization": quantization, **_measure(site, parts, flags)})
    print("| model | MB | sentences/s in Python | in the page | share | start, s |")
    print("|---|---|---|---|---|---|")
    for record in records:
        print(row(record))
    write_results(
        flags.output,
        sentences=flags.sentences,
        turns=flags.turns,
        threads=flags.threads,
        web=records,
    )


def row(record: dict, run: str = "") -> str:
    """A row of the table, of a run by its name."""
    name = record["quantization"].replace("none", "float32")
    rates = " | ".join(f"{record['per_s'][side]:.1f}" for side in ("python", "page"))
    shares = f"{record['over_python']:.2f} | {record['start_up_s']:.1f}"
    return f"| {run}{name} | {record['megabytes']:.1f} | {rates} | {shares} |"


def _measure(site: Path, parts: Sequence[list[str]], flags: Benchmark) -> dict:
    (model,) = (site / name for name in ("model.tflite", PACKED_NAME) if (site / name).exists())
    translator = TFLiteTranslator(model, threads=flags.threads)
    with _served(site) as url, _page(url, flags.threads) as ask:
        turns = seconds_in_turns(
            {
                "python": _taking_turns(translator.translate, parts),
                "page": _taking_turns(lambda lines: ask(lines=lines), parts),
            },
            flags.turns,
        )
        starts = [ask(first=parts[0][0]) for _ in range(flags.turns)]
    median = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {
        "megabytes": model.stat().st_size / 1e6,
        "site_megabytes": sum(f.stat().st_size for f in site.rglob("*") if f.is_file()) / 1e6,
        "per_s": {name: flags.sentences / seconds for name, seconds in median.items()},
        "over_python": 1 / ratios(turns, "python")["page"],
        "start_up_s": statistics.median(starts),
    }


def _taking_turns(
    translate: Callable[[list[str]], object], parts: Sequence[list[str]]
) -> Callable[[], object]:
    """Translates the next part at each call."""
    left = iter(parts)
    return lambda: translate(next(left))


@contextmanager
def _served(site: Path) -> Iterator[str]:
    """The URL of a folder."""
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _page(url: str, threads: int) -> Iterator[Callable[..., float]]:
    """Asks a browser that has the page open, and gives the seconds of its answer."""
    command = ["node", str(SOURCES / "test" / "benchmark.mjs"), url, str(threads)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as node:
        assert node.stdin and node.stdout and node.stderr

        def ask(**question: object) -> float:
            assert node.stdin and node.stdout and node.stderr
            with suppress(BrokenPipeError):  # it has ended, and stderr says why
                node.stdin.write(json.dumps(question) + "\n")
                node.stdin.flush()
            answer = node.stdout.readline()
            if not answer:
                raise InputError(f"the browser fails: {quoted(node.stderr.read().strip())}")
            return json.loads(answer)["seconds"]

        try:
            yield ask
        finally:
            with suppress(BrokenPipeError):
                node.stdin.close()


if __name__ == "__main__":
    run(main)

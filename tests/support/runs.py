"""A translation task that is learnt in seconds, and the command lines run on it as users run them.

The task: letters become numbers, in the opposite order. "c a f" is "6 1 3".
"""

import contextlib
import hashlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORDS = dict(zip("abcdefgh", "12345678", strict=True))
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)  # users have none: what is printed waits to be written
SUBWORDS = "subwords"
SUBWORDS_SHA256 = hashlib.sha256(SUBWORDS.encode()).hexdigest()
MODEL = {
    "vocabulary_size": 288,
    "model_dim": 32,
    "inner_dim": 64,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "precision": "float32",
    "jit": "off",
}


def pairs(count, seed):
    """Sentence pairs of the task, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        letters = rng.choices(list(WORDS), k=rng.randint(1, 7))
        yield " ".join(letters), " ".join(WORDS[letter] for letter in reversed(letters))


def write_pairs(directory, split, count, seed):
    """Writes `<split>.en` and `<split>.de`."""
    source, target = zip(*pairs(count, seed), strict=True)
    for language, lines in (("en", source), ("de", target)):
        text = "".join(f"{line}\n" for line in lines)
        (directory / f"{split}.{language}").write_text(text, encoding="utf-8")


def write_corpus(directory, train=2000):
    """Writes train, valid and test."""
    for seed, (split, count) in enumerate((("train", train), ("valid", 23), ("test", 41))):
        write_pairs(directory, split, count, seed)
    return directory


def flags(**values):
    """Command-line arguments; None leaves a flag out, and a list gives it several values."""
    arguments = []
    for name, value in values.items():
        if value is not None:
            several = value if isinstance(value, (list, tuple)) else [value]
            arguments += [f"--{name}", *map(str, several)]
    return arguments


def train_flags(corpus, run_dir, *, splits=("train", "valid", "test"), **values):
    """The arguments of `train_wmt` for a small model on the corpus, changed by `values`."""
    files = {
        f"{split}_{side}": corpus / f"{split}.{language}"
        for split in splits
        for side, language in (("source", "en"), ("target", "de"))
    }
    return flags(**{**files, **MODEL, "run_dir": run_dir, "export_dir": "none", **values})


def command(module, arguments):
    return [sys.executable, "-m", f"pipelines.{module}", *map(str, arguments)]


def run_process(words, **options):
    """Runs a program at the repository's root; `options` are those of `subprocess.run`."""
    usual = {"cwd": ROOT, "env": ENVIRONMENT, "capture_output": True, "text": True, "check": False}
    return subprocess.run([*map(str, words)], **{**usual, **options})


def run_command(module, arguments, stdin=None):
    """Runs a command line in a process of its own."""
    return run_process(command(module, arguments), input=stdin)


def call(main, arguments, monkeypatch):
    """Runs a command line in this process, as `python -m` would; returns its exit status."""
    from pipelines.command_line import run

    monkeypatch.setattr("pipelines.interruption.end", sys.exit)  # and not this process
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # as those that translate do, for good
    try:
        run(main)
    except SystemExit as ended:
        return ended.code or 0


class _Interrupt(logging.Handler):
    def emit(self, record):
        if record.getMessage().startswith("step 2/"):
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def interrupted(monkeypatch):
    """Sends this process a signal when training tells of its second step."""
    log, handler = logging.getLogger("pipelines"), _Interrupt()
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.command_line.show_log", lambda: log.setLevel(logging.INFO))
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)


def content_of(directory):
    """Every file and directory below it by name, files to the last byte."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def history(run_dir):
    """The records of training in `history.jsonl`, those of validation left out."""
    lines = (Path(run_dir) / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if "loss" in record]


def provenance(config=None, **values):
    """What a run is trained with: the demo's configuration unless another is given."""
    from pipelines.config import default_config
    from pipelines.run.provenance import Provenance

    config = config or default_config("tiny", demo=True)
    return Provenance(
        **{
            "config": config,
            "tokenizer": SUBWORDS_SHA256,
            "arrays": "arrays",
            "replicas": 1,
            "precision": "float32",
            **values,
        }
    )


def open_run(path, trained_with=None, tokenizer=None):
    """A run to train in; the lock on it is given back at once."""
    from pipelines.run.directory import RunDirectory

    path = Path(path)
    if tokenizer is None:
        tokenizer = path.parent / f"{path.name}.subwords"
        if not tokenizer.exists():
            tokenizer.parent.mkdir(parents=True, exist_ok=True)
            tokenizer.write_text(SUBWORDS)
    with RunDirectory(path).locked() as locked:
        return locked.open(trained_with or provenance(), tokenizer)


def small_model(inner_dim=7):
    """A built `Transformer` and its optimizer."""
    import keras

    from tf_relpos import Transformer, TransformerConfig

    sizes = {"vocabulary_size": 11, "model_dim": 6, "inner_dim": inner_dim, "num_heads": 3}
    model = Transformer(TransformerConfig(**sizes, encoder_layers=1, decoder_layers=1))
    model.build()
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    return model, optimizer

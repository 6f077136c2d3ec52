"""The page finds the subwords that the SentencePiece library finds, and joins them alike."""

import random
import subprocess

import pytest
import sentencepiece

from pipelines.data.tokenizer import train_tokenizer
from pipelines.errors import InputError
from pipelines.exporters.web import check_tokenizer
from pipelines.exporters.web_page import SOURCES
from tests.support.browser import need_node, run_node

pytestmark = pytest.mark.tensorflow_only

# Of Unicode: scripts, what NFKC rewrites, marks that combine, pictures, controls.
BLOCKS = [
    *((0x20, 0x7F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x5FF)),
    *((0x600, 0x6FF), (0x900, 0x97F), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x10A0, 0x11FF)),
    *((0x1200, 0x137F), (0x1E00, 0x218F), (0x2460, 0x24FF), (0x2580, 0x2590), (0x3000, 0x33FF)),
    *((0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFDFF), (0xFE70, 0xFFFF), (0x1D400, 0x1D7FF)),
    *((0x1F300, 0x1F9FF), (0x20000, 0x2A6DF), (0x00, 0x1F), (0xE0000, 0xE007F)),
]
WORDS = [
    "the",
    "old",
    "dog",
    "sees",
    "the",
    "house",
    "der",
    "alte",
    "Hund",
    "läuft",
    "Fluß",
    "\ufeffHaus",
]
SPACES = [" ", "  ", "\u3000", "\u00a0", "\t", "\u2581", " \u2581", "\u200b"]
ODD = [
    "",
    " ",
    "\0",
    "\u2581",
    "a\0b",
    "  a  b  ",
    "\u0301",
    "e\u0301",
    "x" * 20_000,
    "HundHundHund",
    "<ent>old<ent",
]


def lines(count, seed):
    """Words and characters of a few blocks, mixed."""
    rng = random.Random(seed)
    for _ in range(count):
        blocks, text = rng.choices(BLOCKS, k=2), ""
        for _ in range(rng.randint(1, 30)):
            what = rng.random()
            if what < 0.15:
                text += rng.choice(SPACES)
            elif what < 0.4:
                text += rng.choice(WORDS)
            else:
                text += chr(rng.randint(*rng.choice(blocks)))
        yield text


def learnt_from():
    """Enough words for pieces longer than a character, and not too many characters."""
    rng = random.Random(0)
    return [*lines(150, seed=1), *(" ".join(rng.choices(WORDS, k=9)) for _ in range(300))]


def stock(path, **settings):
    """A model as SentencePiece's own defaults make it, but for the settings."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(learnt_from()),
        model_prefix=str(path.with_suffix("")),
        vocab_size=2000,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )


def own(path, subword_model):
    size = 270 if subword_model == "word" else 1300
    train_tokenizer(learnt_from(), size, path, subword_model=subword_model)


MODELS = {
    "unigram": lambda path: own(path, "unigram"),
    "bpe": lambda path: own(path, "bpe"),
    "word": lambda path: own(path, "word"),
    "stock unigram": lambda path: stock(path, user_defined_symbols=["<ent>", "old"]),
    "stock bpe": lambda path: stock(path, model_type="bpe", user_defined_symbols=["<ent>", "old"]),
    "spaces kept": lambda path: stock(
        path, add_dummy_prefix=False, remove_extra_whitespaces=False, byte_fallback=True
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_the_library_does_it(tmp_path, name):
    need_node()
    path = tmp_path / "subwords.model"
    MODELS[name](path)
    check_tokenizer(path.read_bytes())
    model, rng = sentencepiece.SentencePieceProcessor(model_file=str(path)), random.Random(2)
    texts = [*ODD, *lines(10_000 if name == "unigram" else 2000, seed=3)]
    size = model.get_piece_size()  # the bytes come first
    ids = [
        [rng.randrange(rng.choice((260, size))) for _ in range(rng.randrange(12))]
        for _ in range(1000)
    ]
    found = run_node("subwords.mjs", {"texts": texts, "ids": ids}, path)
    pairs = zip(texts, model.encode(texts), found["ids"], strict=True)
    assert not [(text, expected, other) for text, expected, other in pairs if expected != other][:3]
    pairs = zip(ids, map(model.decode, ids), found["texts"], strict=True)
    assert not [(row, expected, other) for row, expected, other in pairs if expected != other][:3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "char"}, "of type unigram, bpe or word, got one of type char"),
        ({"treat_whitespace_as_suffix": True}, "puts spaces in front of words"),
        ({"denormalization_rule_tsv": "rules.tsv"}, "without rules of denormalization"),
    ],
    ids=str,
)
def test_other_tokenizers_are_refused(tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.tsv").write_text("41\t42\n")
    stock(tmp_path / "other.model", **settings)
    with pytest.raises(InputError, match=message):
        check_tokenizer((tmp_path / "other.model").read_bytes())


def test_types():
    need_node()
    command = ["npm", "run", "--silent", "check"]
    result = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout

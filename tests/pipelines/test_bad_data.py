"""Any bytes for a corpus: line n stays with line n and is accounted for, or one line says no.

What a text file means is written here once more, from its bytes, and what a line's ids are is asked
of SentencePiece itself; the arrays on disk have to agree with both.
"""

import gzip
import re
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines import evaluate
from pipelines.corpora.text_files import TextFileCorpus, read_lines
from pipelines.data.preparation import prepare
from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.errors import InputError
from pipelines.translate import groups_as_they_come
from tests.support.refusals import message_of, refused
from tests.support.runs import call, command, flags, pairs, run_process

pytestmark = pytest.mark.tensorflow_only

VOCABULARY_SIZE, MAX_LENGTH, END = 288, 40, 3
MARK = b"\xef\xbb\xbf"


def examples(count):
    """The same examples in every run; a failing one is printed so that it can be repeated."""
    return settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


# What Python or Unicode take for line ends, white space or nothing at all; what gzip, SentencePiece
# and byte order marks begin with; characters at the borders of UTF-8's lengths.
ODD = (
    "\x00 \t\r\x0b\x0c\x1c\x1f\x7f\x80\x85\xa0\xad\u0301\u0600\u07ff\u0800\u180e\u200b\u200d\u200e"
    "\u2028\u2029\u202e\u2060\u2581\u2585\u3000\ud7ff\ue000\ufdfa\ufeff\ufffd\ufffe\uffff"
    "\U0001f600\U000e0001\U0010ffff"
)
WORDS = ["a b c", "1 2", "<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "x" * 60, "h " * 60]
CHARACTERS = st.one_of(
    st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\n")
)
LINES = st.one_of(
    st.sampled_from(WORDS),
    st.just(""),
    st.tuples(st.sampled_from(["", "a"]), st.sampled_from(ODD), st.sampled_from(["", "b"])).map(
        "".join
    ),
    st.text(CHARACTERS, max_size=30),
)


@st.composite
def files(draw, lines):
    """The bytes of a text file with these lines, as one system or another would write them."""
    ends = draw(st.lists(st.sampled_from(["\n", "\r\n"]), min_size=len(lines), max_size=len(lines)))
    data = "".join(line + end for line, end in zip(lines, ends, strict=True)).encode()
    if draw(st.booleans()):
        data = MARK + data
    if draw(st.booleans()):
        data = data.removesuffix(b"\n")
    return data


@st.composite
def corpora(draw):
    """Two files: good, or with one thing wrong."""
    rows = draw(st.lists(st.tuples(LINES, LINES), min_size=1, max_size=12))
    data = [draw(files(lines)) for lines in zip(*rows, strict=True)]
    side = draw(st.integers(0, 1))
    damage = draw(st.sampled_from(["none"] * 4 + ["line more", "bytes", "cut short"]))
    if damage == "line more":
        data[side] += b"\none more\n"
    elif damage == "bytes":
        wrong = draw(st.sampled_from([b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5", b"\xe2\x82"]))
        place = draw(st.integers(0, len(data[side])))
        data[side] = data[side][:place] + wrong + data[side][place:]
    zipped = [gzip.compress(bytes_) if draw(st.booleans()) else bytes_ for bytes_ in data]
    if damage == "cut short":
        whole = gzip.compress(data[side])
        zipped[side] = whole[: draw(st.integers(2, len(whole) - 1))]
    return zipped


def lines_of(data):
    """The lines of a file as bytes, or None if it is no whole gzip archive."""
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except Exception:
            return None
    lines = data.removeprefix(MARK).split(b"\n")
    return [line.removesuffix(b"\r") for line in (lines if lines[-1] else lines[:-1])]


def text_of(data):
    """The lines of a file as text, or None if they cannot be had."""
    try:
        return [line.decode() for line in lines_of(data)]
    except (TypeError, UnicodeDecodeError):
        return None


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tokenizer.model"
    train_tokenizer((side for pair in pairs(300, seed=0) for side in pair), VOCABULARY_SIZE, path)
    return path


@pytest.fixture(scope="module")
def encode(model):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda line: [*processor.encode(line), END]


def check_preparation(data, model, encode):
    """Prepares the two files and compares everything on disk with what should be there."""
    texts = [text_of(side) for side in data]
    good = None not in texts and len(texts[0]) == len(texts[1]) > 0
    kept, dropped = [], {"empty": 0, "too long": 0}
    for pair in zip(*texts, strict=True) if good else ():
        ids = tuple(map(encode, pair))
        lengths = sorted(map(len, ids))
        if lengths[0] == 1 or not all(line.strip() for line in pair):  # as translators see them
            dropped["empty"] += 1
        elif lengths[1] > MAX_LENGTH:
            dropped["too long"] += 1
        else:
            kept.append(ids)

    with tempfile.TemporaryDirectory() as place:
        paths = [Path(place) / name for name in ("train.en", "train.de")]
        for path, bytes_ in zip(paths, data, strict=True):
            path.write_bytes(bytes_)
        directory = Path(place) / "prepared"
        with nullcontext() if kept else refused() as refusal:
            prepared = prepare(
                TextFileCorpus(*paths, *paths),
                directory,
                vocabulary_size=VOCABULARY_SIZE,
                max_length=MAX_LENGTH,
                num_shapes=3,
                tokenizer=model,
            )
        if refusal:
            message = str(refusal.value)
            assert message
            if good:
                counts = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
                assert message == f"no training pairs are left to write (dropped: {counts})"
            assert not list(directory.glob("train*"))
            return

        assert [list(side) for side in prepared.text("valid")] == texts
        metadata = prepared.train.metadata
        assert metadata["dropped"] == dropped
        assert metadata["pairs"] + sum(dropped.values()) == len(texts[0])
        assert flat_pairs(directory) == kept
        assert bucketed_pairs(prepared.train) == kept


def flat_pairs(directory):
    """All pairs in the order of the arrays."""
    sides = []
    for side in ("source", "target"):
        ids, offsets = (np.load(directory / f"train/{side}_{n}.npy") for n in ("ids", "offsets"))
        sides.append([part.tolist() for part in np.split(ids, offsets[1:-1])])
    return list(zip(*sides, strict=True))


def bucketed_pairs(corpus):
    """All pairs as training reads them, put back by their numbers."""
    numbers = np.load(corpus.directory / "pairs.npy").tolist()
    found = []
    for bucket, count in enumerate(corpus.pairs_per_bucket):
        sides = (side.tolist() for side in corpus.gather(bucket, np.arange(count)))
        found += [tuple(r[: r.index(END) + 1] for r in rows) for rows in zip(*sides, strict=True)]
    return [pair for _, pair in sorted(zip(numbers, found, strict=True))]


@examples(60)
@given(data=corpora())
def test_line_n_stays_with_line_n_and_every_line_is_accounted_for(model, encode, data):
    check_preparation(data, model, encode)


@examples(20)
@given(data=st.tuples(st.binary(max_size=60), st.binary(max_size=60)))
def test_random_bytes(model, encode, data):
    check_preparation(data, model, encode)


def test_each_odd_character(model, encode):
    lines = [f"a{character}b" for character in ODD]
    sides = ("\n".join(side).encode() for side in (lines, lines[::-1]))
    check_preparation(tuple(sides), model, encode)


@pytest.mark.parametrize("unit", ["x", "ab ", "\x00", "\u2028", "é\u0301"])
def test_lines_of_a_megabyte(model, encode, unit):
    long = unit * (1_000_000 // len(unit.encode()))
    source = f"a b\n{long}\nb c\n\nc d\n".encode()
    target = f"1 2\n2 3\n{long}\n4\n3 4\n".encode()
    check_preparation((source, gzip.compress(target)), model, encode)


@pytest.mark.parametrize("lines", [0, 1, 5000])
def test_only_empty_lines(model, encode, lines):
    check_preparation((b"\n" * lines, b"\r\n" * lines), model, encode)


@examples(200)
@given(data=st.one_of(st.binary(max_size=60), st.lists(LINES, max_size=9).flatmap(files)))
def test_reading_gives_the_lines_or_one_line_of_error(data):
    expected = text_of(data)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with nullcontext() if expected is not None else refused(re.escape(file.name)):
            assert list(read_lines(file.name)) == expected
            groups = list(groups_as_they_come(read_lines(file.name), 3))
            assert [line for group in groups for line in group] == expected


@examples(200)
@given(
    lines=st.lists(LINES, max_size=9),
    place=st.floats(0, 1, exclude_max=True),
    damage=st.sampled_from(["cut", "changed", "added"]),
    byte=st.integers(0, 255),
)
def test_a_damaged_archive_is_noticed(lines, place, damage, byte):
    text = "".join(f"{line}\n" for line in lines).encode()
    whole = gzip.compress(text, mtime=0)
    cut = 2 + int(place * (len(whole) - 2))  # behind the two bytes that make it gzip
    rest = {"cut": b"", "changed": bytes([byte]) + whole[cut + 1 :], "added": whole[cut:] + b"\x01"}
    with tempfile.NamedTemporaryFile() as file:
        file.write(whole[:cut] + rest[damage])
        file.flush()
        try:
            found = list(read_lines(file.name))
        except InputError as error:
            assert re.fullmatch(r"(gzip file must be whole, but|cannot read) \S+.*", str(error))
        else:  # a byte of the header that says nothing about the text
            assert damage == "changed" and found == text_of(text)


@examples(12)
@given(odd=st.lists(LINES, max_size=30), ordinary=st.booleans())
def test_subwords_are_learnt_from_any_text_or_it_is_refused(odd, ordinary):
    text = [side for pair in pairs(100, seed=1) for side in pair] if ordinary else []
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tokenizer.model"
        try:
            train_tokenizer([*odd, *text], VOCABULARY_SIZE, path)
        except InputError as error:
            assert "\n" not in str(error)
            assert not list(Path(place).iterdir())
            return
        tokenizer = Tokenizer(path)
        assert tokenizer.vocabulary_size == VOCABULARY_SIZE
        for row in tokenizer.encode([*odd, *text]).to_list():
            assert row[-1] == END
            assert all(END < number < VOCABULARY_SIZE for number in row[:-1])


def run_on_bytes(module, arguments, stdin=b""):
    return run_process(command(module, arguments), input=stdin, text=False)


GOOD = "".join(f"{source}\n" for source, _ in pairs(300, seed=2)).encode()
REFUSED = {
    "a surrogate": (GOOD + b"\xed\xa0\x80\n", GOOD + b"1\n"),
    "an archive cut short": (gzip.compress(GOOD)[:-9], GOOD),
}


@pytest.mark.parametrize("sides", REFUSED.values(), ids=REFUSED)
def test_prepare_says_one_line(tmp_path, sides):
    for name, data in zip(("s", "t"), sides, strict=True):
        (tmp_path / name).write_bytes(data)
    arguments = flags(
        train_source=tmp_path / "s",
        train_target=tmp_path / "t",
        output=tmp_path / "prepared",
        vocabulary_size=VOCABULARY_SIZE,
    )
    result = run_on_bytes("prepare", arguments)
    assert result.stdout == b""
    assert message_of(result.returncode, result.stderr.decode(), "learning 288 subwords from s")
    assert not list((tmp_path / "prepared").glob("train*"))


ANY_TEXT = [*WORDS[:-1], "", "c a f", *ODD]


def test_translate_answers_each_line_up_to_the_one_it_cannot_read(trained_run):
    good = "".join(f"{line}\n" for line in ANY_TEXT)
    arguments = flags(model=trained_run, beam_size=1)
    result = run_on_bytes("translate", arguments, good.encode() + b"\xed\xa0\x80\na b\n")
    answers = result.stdout.decode().split("\n")
    assert len(answers) == len(ANY_TEXT) + 1 and answers[-1] == ""
    assert answers[ANY_TEXT.index("c a f")] == "6 1 3"
    number = len(ANY_TEXT) + 1
    told = message_of(result.returncode, result.stderr.decode())
    assert told.startswith(f"text must be UTF-8, but line {number} of standard input is not ")


def test_evaluate_scores_any_text(trained_run, tmp_path, monkeypatch, capfd):
    shutil.copytree(trained_run, tmp_path / "run")
    source, reference = tmp_path / "source", tmp_path / "reference"
    lines = [*ANY_TEXT, "a " * 300]
    source.write_bytes(gzip.compress("".join(f"{line}\r\n" for line in lines).encode()))
    reference.write_bytes(MARK + "\n".join(["6 1 3"] * len(lines)).encode())
    arguments = flags(run_dir=tmp_path / "run", source=source, reference=reference, beam_size=1)
    assert call(evaluate.main, arguments, monkeypatch) == 0
    output = capfd.readouterr()
    assert re.match(r"BLEU \d+\.\d+ ", output.out)
    assert re.fullmatch(
        rf"line {len(lines)} is cut: the model reads 256 of its \d+ subwords, .*\n"
        rf"1 of {len(lines)} lines were cut\n",
        output.err,
    )

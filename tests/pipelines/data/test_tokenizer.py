"""Subwords: text survives them, in eager mode, in graphs and in a SavedModel."""

import os
import random
import signal
import threading
import unicodedata

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from sentencepiece import sentencepiece_model_pb2

from pipelines.data.tokenizer import Tokenizer, train_tokenizer
from pipelines.errors import InputError
from tests.support.refusals import refused

VOCABULARY_SIZE = 300


def sentences(count=400, seed=0):
    """Sentences of two languages in turn."""
    rng = random.Random(seed)
    english = ["the", "old", "dog", "sees", "a", "small", "house", "today", "near", "water"]
    german = ["der", "alte", "Hund", "sieht", "ein", "schönes", "Haus", "heute", "am", "Fluß"]
    for number in range(count):
        words = english if number % 2 == 0 else german
        yield " ".join(rng.choices(words, k=rng.randint(3, 9))) + "."


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer(sentences(), VOCABULARY_SIZE, path)
    return path


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return Tokenizer(model_path)


def round_trip(tokenizer, texts):
    ids = tokenizer.encode(tf.constant(texts)).to_tensor()
    return [text.decode() for text in tokenizer.decode(ids).numpy()]


TEXTS = [
    "the old dog sees a small house.",
    "Der Hund, „heute“ am Fluß – schön!",
    "emoji 😀 👨\u200d👩\u200d👧 🇩🇪 in a row",
    "ﬁne ½ Å e\u0301 ＡＢＣ",
    "日本語 العربية हिन्दी क्\u200dष \ufeff\u00ad\u200b",
    "  spaces   all  over ",
    "tab\tand\nnewline",
    "a NUL \x00 inside",
    "",
    "x" * 5000,
]


def test_text_comes_back_up_to_nfkc_and_white_space(tokenizer):
    def plain(text):
        return " ".join(unicodedata.normalize("NFKC", text).split())

    for text, back in zip(TEXTS, round_trip(tokenizer, TEXTS), strict=True):
        assert plain(back) == plain(text)


def test_encoding_ends_with_the_end_id_and_knows_every_character(tokenizer):
    ids = tokenizer.encode(tf.constant(TEXTS))
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32
    for row in ids.to_list():
        assert row[-1] == 3
        assert all(3 < number < VOCABULARY_SIZE for number in row[:-1])
    assert ids.to_list()[TEXTS.index("")] == [3]
    assert tokenizer.vocabulary_size == VOCABULARY_SIZE


def test_encoding_equals_sentencepiece(tokenizer, model_path):
    model = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
    assert tokenizer.encode(TEXTS).to_list() == [model.encode(text) + [3] for text in TEXTS]


def test_decoding_stops_at_the_end_and_drops_padding_and_start(tokenizer):
    dog, house = (tokenizer.encode([word]).to_list()[0][:-1] for word in ("dog", "house"))
    rows = [[2, *dog, 3, *house], [*dog, *house, 3], [0, *house], [3, *dog], [0, 0]]
    ids = keras.utils.pad_sequences(rows, padding="post")
    expected = [b"dog", b"dog house", b"house", b"", b""]
    assert tokenizer.decode(ids).numpy().tolist() == expected
    assert tokenizer.decode(ids.astype(np.int64)).numpy().tolist() == expected
    assert tokenizer.decode(np.zeros([0, 7], np.int32)).shape == [0]


def test_graph_and_dataset_give_the_eager_result(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def there_and_back(texts):
        return tokenizer.decode(tokenizer.encode(texts).to_tensor())

    assert [text.decode() for text in there_and_back(TEXTS).numpy()] == round_trip(tokenizer, TEXTS)
    assert there_and_back(tf.constant([], tf.string)).shape == [0]
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3).map(tokenizer.encode)
    rows = [row for batch in dataset for row in batch.to_list()]
    assert rows == tokenizer.encode(TEXTS).to_list()


def test_a_saved_model_contains_the_vocabulary(tmp_path, model_path):
    copy = tmp_path / "copy.model"
    copy.write_bytes(model_path.read_bytes())
    module = tf.Module()
    module.tokenizer = Tokenizer(copy)
    module.encode = tf.function(
        lambda texts: module.tokenizer.encode(texts).to_tensor(),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    expected = module.encode(TEXTS).numpy()
    tf.saved_model.save(module, tmp_path / "saved")
    copy.unlink()
    np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "saved").encode(TEXTS), expected)


def test_a_new_random_seed_does_not_lose_the_vocabulary(model_path, tmp_path):
    """It clears TensorFlow's kernels, and with them whatever they own."""
    train_tokenizer(sentences(seed=1), 290, tmp_path / "other.model")
    tokenizer, other = Tokenizer(model_path), Tokenizer(tmp_path / "other.model")
    before = [each.encode(TEXTS).to_list() for each in (tokenizer, other)]
    assert before[0] != before[1]
    keras.utils.set_random_seed(1)
    assert [each.encode(TEXTS).to_list() for each in (tokenizer, other)] == before
    same = Tokenizer(model_path)
    del tokenizer
    assert same.encode(TEXTS).to_list() == before[0]


def test_invalid_utf8_is_survived(tokenizer):
    (text,) = tokenizer.decode(tokenizer.encode([b"dog \xff\xfe house"]).to_tensor()).numpy()
    assert text.decode().startswith("dog") and text.decode().endswith("house")


def test_the_same_text_gives_the_same_model(tmp_path, model_path):
    train_tokenizer(sentences(), VOCABULARY_SIZE, tmp_path / "again.model")
    assert (tmp_path / "again.model").read_bytes() == model_path.read_bytes()


def test_a_sample_of_a_long_stream_is_learnt_from(tmp_path):
    seen = []

    def stream():
        for sentence in sentences(3000):
            seen.append(sentence)
            yield sentence

    train_tokenizer(stream(), 300, tmp_path / "one.model", sample_size=150)
    train_tokenizer(sentences(3000), 300, tmp_path / "two.model", sample_size=150)
    train_tokenizer(sentences(150), 300, tmp_path / "head.model", sample_size=150)
    one, two, head = ((tmp_path / f"{n}.model").read_bytes() for n in ("one", "two", "head"))
    assert len(seen) == 3000 and one == two != head


def test_odd_lines_do_not_stop_the_training(tmp_path, capfd):
    odd = ["", " ", "\t", "\x00", "a\x00b", "x" * 1_000_000, "ab " * 400_000, "\n", "\u2028"]
    train_tokenizer([*sentences(), *odd], 300, tmp_path / "tokenizer.model")
    assert Tokenizer(tmp_path / "tokenizer.model").vocabulary_size == 300
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "vocabulary_size, message",
    [
        (100_000, r"^vocabulary_size must be at most \d+ for this text, got 100000$"),
        (265, r"^vocabulary_size must be more than \d+ for this text, got 265$"),
        (260, r"^vocabulary_size must be at least 261 .*, got 260$"),
        (-1, r"^vocabulary_size must be at least 261 .*, got -1$"),
        (10**12, r"vocabulary_size"),
    ],
)
def test_impossible_vocabulary_sizes_are_refused(tmp_path, vocabulary_size, message):
    with refused(message):
        train_tokenizer(sentences(), vocabulary_size, tmp_path / "tokenizer.model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("subword_model", ["unigram", "bpe", "word"])
def test_the_limit_told_is_the_limit(tmp_path, subword_model):
    def train(vocabulary_size):
        path = tmp_path / "tokenizer.model"
        train_tokenizer(sentences(), vocabulary_size, path, subword_model=subword_model)
        return sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes()).trainer_spec

    with refused("^vocabulary_size must be at most .*, got 5000$") as too_high:
        train(5000)
    limit = int(str(too_high.value).split("at most ")[1].split()[0])
    spec = train(limit)
    assert spec.model_type == getattr(spec, subword_model.upper())
    with refused(f"^vocabulary_size must be at most {limit} .*, got {limit + 1}$"):
        train(limit + 1)


def test_words_are_pieces_as_they_stand_in_text_that_is_cut_already(tmp_path):
    path, words = tmp_path / "tokenizer.model", ["ein", "Hau@@", "s", "½", "a\u00a0b", "Ｂ…"]
    with refused("^vocabulary_size must be at least 5 .*, got 4$"):
        train_tokenizer(words, 4, path, subword_model="word")
    train_tokenizer([" ".join(words)] * 9, 4 + len(words), path, subword_model="word")
    tokenizer = Tokenizer(path)
    text = " ".join(words[::-1])
    assert len(set(tokenizer.encode(tf.constant([text])).numpy()[0][:-1])) == len(words)
    assert round_trip(tokenizer, [text]) == [text]
    # Those that follow each other become one.
    unknown = ["ein Ba@@ s", "s Ba@@ um"]
    assert round_trip(tokenizer, unknown) == ["ein <unk> s", "s <unk>"]


@pytest.mark.parametrize("text", [[], [""], [" ", "\t"], ["x" * 5000]])
def test_text_without_anything_to_learn_is_refused(tmp_path, text):
    with refused("nothing to learn|vocabulary_size must be at most"):
        train_tokenizer(text, 300, tmp_path / "tokenizer.model")


def test_an_error_of_the_text_comes_through_as_it_is(tmp_path):
    def broken():
        yield from sentences()
        raise InputError("line 401 is not UTF-8")

    with refused(r"^line 401 is not UTF-8$"):
        train_tokenizer(broken(), 300, tmp_path / "tokenizer.model")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def _ctrl_c():
    """Python's own handler: a shell script has its background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_an_interruption_does_not_wait_for_what_is_learnt(tmp_path):
    was_heard = threading.Event()

    def interrupted():
        yield from sentences(500, seed=0)
        os.kill(os.getpid(), signal.SIGINT)
        assert was_heard.wait(60)
        yield from sentences(500, seed=1)

    with pytest.raises(KeyboardInterrupt):
        train_tokenizer(interrupted(), 300, tmp_path / "tokenizer.model")
    [learning] = [thread for thread in threading.enumerate() if thread.name == "waited for"]
    was_heard.set()
    learning.join()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"\x00", b"not a model", b"\n" * 1000])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "some.model").write_bytes(content)
    with refused("some.model is not a SentencePiece model"):
        Tokenizer(tmp_path / "some.model")


HOSTILE = {
    "no pieces": lambda model: model.ClearField("pieces"),
    "an empty piece": lambda model: setattr(model.pieces[270], "piece", ""),
    "a piece twice": lambda model: setattr(model.pieces[270], "piece", model.pieces[271].piece),
    "a piece of megabytes": lambda model: setattr(model.pieces[270], "piece", "x" * 5_000_000),
    "a score that is no number": lambda model: setattr(model.pieces[270], "score", float("nan")),
    "no such byte": lambda model: setattr(model.pieces[100], "piece", "<0xZZ>"),
    "a byte too few": lambda model: model.pieces.pop(100),
    "bytes without fallback": lambda model: setattr(model.trainer_spec, "byte_fallback", False),
    "rules of random bytes": lambda model: setattr(
        model.normalizer_spec, "precompiled_charsmap", random.Random(1).randbytes(5000)
    ),
    "rules of another length": lambda model: setattr(
        model.normalizer_spec, "precompiled_charsmap", b"\xff" * 4 + bytes(5000)
    ),
    "padding of another name": lambda model: setattr(model.trainer_spec, "pad_piece", "x"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_models_are_refused(model_path, tmp_path, change):
    model = sentencepiece_model_pb2.ModelProto.FromString(model_path.read_bytes())
    change(model)
    (tmp_path / "some.model").write_bytes(model.SerializeToString())
    with refused(r"some.model (is not|must have)"):
        Tokenizer(tmp_path / "some.model")


@pytest.mark.parametrize("part", [0.01, 0.5, 0.999])
def test_a_model_that_is_cut_is_refused(model_path, tmp_path, part):
    content = model_path.read_bytes()
    (tmp_path / "some.model").write_bytes(content[: int(part * len(content))])
    with refused("some.model is not a SentencePiece model"):
        Tokenizer(tmp_path / "some.model")


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "absent.model"):
        with refused("cannot read the tokenizer"):
            Tokenizer(path)


def test_other_special_ids_are_refused(tmp_path):
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=sentences(),
        model_prefix=str(tmp_path / "plain"),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with refused("must have ids 0 pad.*got -1, 0, 1, 2"):
        Tokenizer(tmp_path / "plain.model")

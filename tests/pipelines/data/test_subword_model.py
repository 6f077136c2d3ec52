"""SentencePiece models from elsewhere: other special ids, the same subwords."""

import io

import pytest
import sentencepiece
import tensorflow as tf

from pipelines import prepare, train_wmt
from pipelines.data.preparation import open_prepared
from pipelines.data.subword_model import adapted_model, read_model, vocabulary_size_of
from pipelines.data.tokenizer import Tokenizer
from pipelines.errors import InputError
from tests.pipelines.data.test_tokenizer import sentences
from tests.support.runs import flags

pytestmark = pytest.mark.tensorflow_only

# By what makes such models, and how many pieces have to be added to them.
FOREIGN = {
    "spm_train": ({}, 1),
    "spm_train, BPE": ({"model_type": "bpe"}, 1),
    "T5": ({"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, 1),
    "all in other places": ({"pad_id": 3, "unk_id": 0, "bos_id": 2, "eos_id": 1}, 0),
    "text that is cut already": (
        {"model_type": "word", "normalization_rule_name": "identity", "use_all_vocab": True},
        1,
    ),
    "names that are taken": ({"bos_id": -1, "user_defined_symbols": "<s>,<pad>"}, 2),
}


@pytest.fixture
def foreign(tmp_path):
    def train(**options):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=sentences(),
            model_writer=model,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
            **options,
        )
        path = tmp_path / "foreign.model"
        path.write_bytes(model.getvalue())
        return path

    return train


@pytest.mark.parametrize("options, added", FOREIGN.values(), ids=FOREIGN)
def test_it_gets_our_ids_and_keeps_its_subwords(foreign, tmp_path, options, added):
    path = foreign(**options)
    before = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    assert vocabulary_size_of(path) == before.get_piece_size() + added
    (tmp_path / "ours.model").write_bytes(adapted_model(path))
    after = read_model(tmp_path / "ours.model")
    tokenizer = Tokenizer(tmp_path / "ours.model")
    for text in (*sentences(20, seed=1), "ein Ω zwei", "a <s> b"):
        pieces, decoded = before.encode(text, out_type=str), before.decode(before.encode(text))
        assert after.encode(text, out_type=str) == pieces
        ids = tokenizer.encode(tf.constant([text]))
        assert ids.numpy().tolist() == [[*after.encode(text), 3]]
        assert tokenizer.decode(ids.to_tensor()).numpy()[0].decode() == decoded
    assert after.encode("Ω")[-1] == 1
    assert adapted_model(tmp_path / "ours.model") == (tmp_path / "ours.model").read_bytes()


def test_a_text_is_prepared_with_it_in_the_size_that_it_has(corpus, foreign, tmp_path):
    path = foreign()
    arguments = flags(
        train_source=corpus / "valid.en", train_target=corpus / "valid.de", tokenizer=path
    )
    prepare.main([*arguments, *flags(output=tmp_path / "prepared")])
    prepared = open_prepared(tmp_path / "prepared")
    assert prepared.tokenizer_path.read_bytes() == adapted_model(path)
    config, *_ = train_wmt.parse(arguments)
    size = prepared.settings["vocabulary_size"]
    assert config.model.vocabulary_size == size == vocabulary_size_of(path)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"vocabulary_size": 99}, "vocabulary_size must be that of the tokenizer .*, got 99"),
        ({"initialize_from": "x", "run_dir": "y"}, "tokenizer must not be given with --init"),
        ({"prepared": "x"}, "--tokenizer must not be given with --prepared"),
        ({"tokenizer": "absent"}, "cannot read the tokenizer absent"),
        ({"tokenizer": __file__}, "is not a SentencePiece model"),
    ],
)
def test_what_contradicts_it_is_refused(foreign, values, message):
    with pytest.raises(InputError, match=message):
        train_wmt.parse(flags(**{"tokenizer": foreign(), **values}))


def test_sampling_from_another_kind_of_model_is_refused_at_once(foreign):
    arguments = flags(tokenizer=foreign(model_type="bpe"), subword_sampling=0.1)
    with pytest.raises(InputError, match="subword_sampling needs a unigram model, but .*foreign"):
        train_wmt.parse(arguments)

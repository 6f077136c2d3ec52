"""A packed file holds the same model, its matrices rounded; damage is told."""

import json

import numpy as np
import pytest

from pipelines import export
from pipelines.errors import InputError
from pipelines.exporters.packed_model import pack
from pipelines.exporters.quantization import LEAST_NUMBERS, rounded_rows
from pipelines.translators.open import open_translator
from pipelines.translators.packed_model import PACKED, unpack
from pipelines.translators.tflite import TFLiteTranslator, read_metadata
from tests.support.exported_forms import write_run
from tests.support.random_model import make_model, write_tokenizer
from tests.support.runs import flags

pytestmark = pytest.mark.tensorflow_only


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A TFLite file, and where it is, with its tokenizer."""
    directory = tmp_path_factory.mktemp("packed")
    tokenizer = write_tokenizer(directory / "tokenizer.model")
    run = write_run(directory / "run", make_model(), tokenizer)
    path = directory / "model.tflite"
    export.main(flags(run_dir=run, format="tflite", output=path))
    return path, path.read_bytes()


def test_rows_are_rounded_to_half_a_scale(rng):
    matrix = rng.normal(size=(37, 53)).astype(np.float32) * rng.lognormal(0, 5, (37, 1))
    matrix = matrix.astype(np.float32)
    matrix[5] = 0
    integers, scales = rounded_rows(matrix)
    assert (integers.dtype, scales.dtype) == (np.int8, np.float32)
    assert np.abs(integers).max(axis=1).tolist() == [0 if row == 5 else 127 for row in range(37)]
    error = np.abs(integers * scales[:, None] - matrix)
    assert np.all(error <= 0.5001 * scales[:, None])
    np.testing.assert_array_equal(rounded_rows(integers * scales[:, None])[0], integers)


def test_only_large_matrices_are_rounded(content):
    """By a row's scale; all else is there again, byte by byte."""
    _, file = content
    packed = pack(file)
    again = unpack(packed)
    table = make_model().embedding.embeddings.numpy()
    integers, scales = rounded_rows(table)
    rounded = integers * scales[:, None]
    assert table.size >= LEAST_NUMBERS
    assert file.count(table.tobytes()) == 1
    assert again == file.replace(table.tobytes(), rounded.tobytes())
    assert packed.count(integers.tobytes()) == 1
    saved = 3 * table.size - 4 * len(table)
    assert 0 < len(packed) - (len(file) - saved) < 200  # the head
    assert unpack(again) == again
    assert unpack(pack(again)) == again


def test_a_model_without_large_matrices_stays_as_it_is(content, monkeypatch):
    monkeypatch.setattr("pipelines.exporters.packed_model.LEAST_NUMBERS", 1 << 30)
    _, file = content
    assert unpack(pack(file)) == file


def test_translates(content, tmp_path):
    """Also found in a directory, as the page's."""
    path, file = content
    packed = tmp_path / "model.packed"
    packed.write_bytes(pack(file))
    plain = tmp_path / "rounded.tflite"
    plain.write_bytes(unpack(packed.read_bytes()))
    tokenizer = path.with_name("model.tokenizer.model")
    packed.with_name("model.tokenizer.model").write_bytes(tokenizer.read_bytes())
    sentences = ["eins zwei", "drei", "vier fünf sechs"]
    found = list(TFLiteTranslator(packed).stream(sentences))
    assert found == list(TFLiteTranslator(plain).stream(sentences))
    assert read_metadata(packed) == read_metadata(path)
    assert list(open_translator(str(tmp_path)).stream(sentences)) == found


def with_head(change):
    """Damage of a head that is as long as it says."""

    def damage(packed):
        start = len(PACKED) + 4
        end = start + int.from_bytes(packed[len(PACKED) : start], "little")
        head = json.dumps(change(json.loads(packed[start:end]))).encode()
        return PACKED + len(head).to_bytes(4, "little") + head + packed[end:]

    return damage


def moved(head, start, rows=0, columns=0):
    (matrix,) = head["matrices"]
    changed = [matrix[0] + start, matrix[1] + rows, matrix[2] + columns]
    return {**head, "matrices": [changed]}


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-1],
        lambda packed: packed + b"\0",
        lambda packed: packed[: len(PACKED)],
        lambda packed: packed.replace(b'{"', b'["', 1),
        with_head(lambda head: {"size": head["size"]}),
        with_head(lambda head: {**head, "size": head["size"] + 1}),
        with_head(lambda head: {**head, "size": 3}),
        with_head(lambda head: {**head, "size": -head["size"]}),
        with_head(lambda head: {**head, "matrices": 7}),
        with_head(lambda head: moved(head, 1 << 40)),
        with_head(lambda head: moved(head, -(1 << 40))),
        with_head(lambda head: moved(head, 0, rows=1)),
        with_head(lambda head: moved(head, 0, columns=-1000)),
    ],
)
def test_damage_is_told(content, tmp_path, damage):
    path = tmp_path / "model.packed"
    path.write_bytes(damage(pack(content[1])))
    with pytest.raises(InputError, match=r"model\.packed is damaged$"):
        TFLiteTranslator(path)


@pytest.mark.parametrize("size", [600_000_000_000, 0, -1])
def test_one_that_is_not_as_long_as_it_says_takes_no_memory(size):
    head = json.dumps({"matrices": [[0, 1, 1]], "size": size}).encode()
    content = PACKED + len(head).to_bytes(4, "little") + head
    with pytest.raises(ValueError, match="it is not as long as it says"):
        unpack(content)

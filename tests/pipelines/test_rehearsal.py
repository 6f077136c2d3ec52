"""The paper's full runs, rehearsed on random text: the commands of docs/pages/wmt14.md, whole.

pytest -m slow tests/pipelines/test_rehearsal.py
"""

import pytest
import tensorflow as tf
from tensorflow_datasets import testing
from tensorflow_datasets.testing.mocking import RandomFakeGenerator

from pipelines import prepare, train_wmt
from pipelines.run.directory import RunDirectory
from pipelines.translators.open import open_translator
from tests.support.runs import flags

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

SUBWORDS = 32_768
EXAMPLES = {"train": 40_000, "validation": 4, "test": 4}


def random_text(builder, split, **_):
    """TFDS's own random strings, more of them to train on than to translate."""
    examples = RandomFakeGenerator(builder.info.features, EXAMPLES[str(split)])
    signature = {name: tf.TensorSpec([], tf.string) for name in builder.info.features}
    return tf.data.Dataset.from_generator(lambda: iter(examples), output_signature=signature)


@pytest.fixture(scope="module", params=["de", "fr"])
def prepared(request, tmp_path_factory):
    """What `pipelines.prepare` makes of WMT14 English-German or English-French."""
    language, directory = request.param, tmp_path_factory.mktemp("prepared") / "text"
    with testing.mock_data(as_dataset_fn=random_text):
        prepare.main(
            flags(
                dataset=f"wmt14_translate/{language}-en",
                target_language=language,
                vocabulary_size=SUBWORDS,
                output=directory,
            )
        )
    return directory


@pytest.mark.parametrize(("preset", "steps", "tokens"), [("base", 20, 1024), ("big", 3, 256)])
def test_full_size(prepared, tmp_path, preset, steps, tokens):
    """Training, validation, the test score, the export, and a translation by it."""
    run, exported = tmp_path / "run", tmp_path / "exported"
    given = {"prepared": prepared, "preset": preset, "run_dir": run, "export_dir": exported}
    size = {"steps": steps, "tokens_per_replica": tokens, "valid_every": steps, "log_every": 1}
    train_wmt.main(flags(**given, **size))
    directory = RunDirectory(run)
    model = directory.config().model
    assert (model.vocabulary_size, model.encoder_layers, model.decoder_layers) == (SUBWORDS, 6, 6)
    assert (model.model_dim, model.inner_dim) == {"base": (512, 1024), "big": (1024, 4096)}[preset]
    (score,) = directory.scores()
    assert (score["split"], score["step"]) == ("test", steps)
    sources = ["a b cd", "efg hij"]
    found = open_translator(exported).translate(sources)
    assert found == open_translator(run, beam_size=4, alpha=0.6).translate(sources)

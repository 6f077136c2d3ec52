"""The model of a configuration, or one line."""

import dataclasses

import pytest

from pipelines.data.buckets import Bucket
from pipelines.run.models import build_model
from tests.support.refusals import refused
from tf_relpos import TransformerConfig

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize("name", ["vocabulary_size", "inner_dim", "max_relative_position"])
@pytest.mark.parametrize("size", [4 * 10**12, 2**62, 10**30])
def test_what_no_machine_can_hold_is_told(name, size):
    sizes = {"model_dim": 6, "num_heads": 3, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig.preset("tiny", **{**sizes, name: size})
    with refused("the model is too large for this machine: "):
        build_model(config)


@pytest.mark.parametrize(
    ("heads_share", "lengths", "expected"),
    [
        (True, {7: 90, 20: 10}, "transpose_reshape"),  # 7 labels
        (True, {6: 60, 7: 50, 24: 29}, "transpose_reshape"),
        (True, {6: 60, 8: 50, 24: 30}, "auto"),  # more than half are in long sentences
        (True, {7: 900, 28: 1}, "transpose_reshape"),
        (True, {7: 900, 29: 1}, "auto"),  # one is very long
        (False, {3: 90, 9: 10}, "transpose_reshape"),
        (False, {2: 60, 3: 50, 12: 10}, "transpose_reshape"),
        (False, {2: 60, 4: 50, 12: 10}, "auto"),
        (False, {3: 900, 12: 1}, "transpose_reshape"),
        (False, {3: 900, 13: 1}, "auto"),
        (True, {}, "auto"),
    ],
)
def test_the_paper_s_form_is_for_short_text(heads_share, lengths, expected):
    config = TransformerConfig(
        vocabulary_size=17,
        model_dim=6,
        inner_dim=5,
        num_heads=3,
        encoder_layers=1,
        decoder_layers=1,
        max_relative_position=3,
        heads_share_relative_embedding=heads_share,
    )
    buckets = [Bucket(length - 2, length, pairs, 1, 1) for length, pairs in lengths.items()]
    assert build_model(config, buckets=buckets).config.implementation == expected
    asked = dataclasses.replace(config, implementation="bucketed")
    assert build_model(asked, buckets=buckets).config.implementation == "bucketed"

"""The model of a configuration, or one line."""

import pytest

from pipelines.errors import InputError
from pipelines.run.models import build_model
from tf_relpos import TransformerConfig

pytestmark = pytest.mark.tensorflow_only


@pytest.mark.parametrize("name", ["vocabulary_size", "inner_dim", "max_relative_position"])
@pytest.mark.parametrize("size", [4 * 10**12, 2**62, 10**30])
def test_what_no_machine_can_hold_is_told(name, size):
    sizes = {"model_dim": 6, "num_heads": 3, "encoder_layers": 1, "decoder_layers": 1}
    config = TransformerConfig.preset("tiny", **{**sizes, name: size})
    with pytest.raises(InputError, match="the model is too large for this machine: ") as told:
        build_model(config)
    assert "\n" not in str(told.value)

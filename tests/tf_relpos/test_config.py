"""The hyper-parameters: published sets, refusals by name, JSON, and no need of Keras."""

import dataclasses
import inspect
import json

import numpy as np
import pytest

from tests.support.layer_checks import ROOT, run_python
from tf_relpos import TransformerConfig, beam_search, relation_ops
from tf_relpos import config as config_module
from tf_relpos.config import PRESETS


@pytest.mark.parametrize(
    "name, numbers",
    {
        # layers, D, inner, heads, position, k, tables shared by heads, dropout
        "tiny": (4, 128, 256, 4, "relative", 16, True, 0.1),
        "base": (6, 512, 1024, 8, "relative", 16, False, 0.1),
        "big": (6, 1024, 4096, 16, "relative", 8, True, 0.3),
        "vaswani_base": (6, 512, 2048, 8, "sinusoidal", 16, False, 0.1),
        "vaswani_big": (6, 1024, 4096, 16, "sinusoidal", 16, False, 0.3),
        "t2t_relative_base": (6, 512, 2048, 8, "relative", 20, True, 0.1),
        "t2t_relative_big": (6, 1024, 4096, 16, "relative", 20, True, 0.3),
    }.items(),
)
def test_presets_are_the_published_ones(name, numbers):
    config = TransformerConfig.preset(name)
    assert config.encoder_layers == config.decoder_layers == numbers[0]
    assert (config.model_dim, config.inner_dim, config.num_heads) == numbers[1:4]
    assert config.position == numbers[4]
    if config.uses_relative:
        tables = (config.max_relative_position, config.heads_share_relative_embedding)
        assert tables == numbers[5:7]
        assert config.relative_keys and config.relative_values
    assert config.dropout == numbers[7]
    assert config.vocabulary_size == 32_768
    assert config.norm == ("pre" if name.startswith(("t2t", "tiny")) else "post")
    changed = TransformerConfig.preset(name, dropout=0.25, position="both")
    assert changed == dataclasses.replace(config, dropout=0.25, position="both")


def test_every_preset_is_in_the_table():
    assert len(PRESETS) == 7
    with pytest.raises(ValueError, match="`preset` must be one of tiny, .*preset='huge'"):
        TransformerConfig.preset("huge")
    with pytest.raises(
        ValueError, match="fields of TransformerConfig, .*vocabulary_size. Received: heads=3"
    ):
        TransformerConfig.preset("tiny", heads=3)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_heads": 7}, "`num_heads` must divide `model_dim`.*num_heads=7, model_dim=512"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"model_dim": 64.0}, "model_dim=64.0"),
        ({"inner_dim": -1}, "inner_dim=-1"),
        ({"encoder_layers": 0}, "encoder_layers=0"),
        ({"decoder_layers": True}, "decoder_layers=True"),
        ({"max_relative_position": -1}, "max_relative_position.*-1"),
        ({"attention_window": 10**30}, "`attention_window` must be below 2.31 - 1"),
        ({"position": "absolute"}, "position.*relative, sinusoidal, both, none.*absolute"),
        ({"implementation": "fast"}, "implementation.*transpose_reshape.*fast"),
        ({"norm": "mid"}, "norm.*post, pre.*mid"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1"),
        ({"inner_dropout": 1.5}, "inner_dropout=1.5"),
        ({"vocabulary_size": 3}, "vocabulary_size=3"),
        ({"end_id": 2}, "four different ids.*\\(0, 1, 2, 2\\)"),
        ({"relative_keys": False, "relative_values": False}, "`relative_keys` or"),
        ({"relative_keys": "False"}, "`relative_keys` must be True or False.*'False'"),
        ({"relative_values": 1}, "`relative_values` must be True or False.*=1"),
        ({"heads_share_relative_embedding": None}, "embedding` must be True or False.*None"),
        ({"dropout": "0.1"}, "`dropout` must be a number at least 0 and below 1.*'0.1'"),
        ({"attention_dropout": float("nan")}, "attention_dropout=nan"),
        ({"inner_dropout": True}, "inner_dropout=True"),
        ({"vocabulary_size": "900"}, "vocabulary_size='900'"),
        ({"num_heads": np.float32(8)}, "num_heads=np.float32"),
        ({"model_dim": np.array([64, 64])}, "model_dim=array"),
        ({"pad_id": -1}, "pad_id=-1"),
        ({"unknown_id": 1.0}, "unknown_id=1.0"),
        ({"position": ["relative"]}, r"position=\['relative'\]"),
        ({"norm": None}, "norm=None"),
    ],
)
def test_contradictory_fields_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**fields)


def test_position_none_needs_no_relative_tables():
    config = TransformerConfig(position="none", relative_keys=False, relative_values=False)
    assert not config.uses_relative and not config.uses_sinusoidal


def test_numpy_numbers_become_json():
    fields = {
        "vocabulary_size": np.int64(900),
        "model_dim": np.int32(64),
        "num_heads": np.uint8(4),
        "max_relative_position": np.int16(3),
        "relative_keys": np.bool_(False),
        "position": np.str_("both"),
        "dropout": np.float32(0.25),
        "end_id": np.array(3),
    }
    config = TransformerConfig(**fields)
    assert config == TransformerConfig(**{k: v.item() for k, v in fields.items()})
    assert hash(config) is not None
    again = TransformerConfig(**json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config
    assert type(config.model_dim) is int and config.relative_keys is False


def test_it_is_read_without_keras_and_numpy():
    """A command line checks its flags with the module before it imports anything that is slow."""
    loaded = run_python(
        f"""
import sys, importlib, types
before = set(sys.modules)
for name in ("keras", "tensorflow", "numpy", "jax", "torch"):
    sys.modules[name] = None  # importing it fails
package = sys.modules["tf_relpos"] = types.ModuleType("tf_relpos")  # without its __init__
package.__path__ = [r"{ROOT / "tf_relpos"}"]
module = importlib.import_module("tf_relpos.config")
config = module.TransformerConfig.preset("tiny", num_heads=8, implementation="bucketed")
try:
    module.TransformerConfig(num_heads=7)
except ValueError as error:
    print(error)
new = {{name for name in set(sys.modules) - before if sys.modules[name] is not None}}
print(*sorted({{name.partition(".")[0] for name in new}} - sys.stdlib_module_names))
"""
    )
    assert loaded == (
        "`num_heads` must divide `model_dim`. Received: num_heads=7, model_dim=512\ntf_relpos"
    )


def test_every_choice_is_said_once():
    assert relation_ops.IMPLEMENTATIONS is config_module.IMPLEMENTATIONS
    defaults = inspect.signature(beam_search).parameters
    assert defaults["beam_size"].default is config_module.BEAM_SIZE
    assert defaults["alpha"].default is config_module.ALPHA

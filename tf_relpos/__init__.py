"""Self-attention with relative position representations, and labelled edges, for Keras 3."""

from tf_relpos import config as config  # also where it was imported before the package
from tf_relpos.beams import beam_search
from tf_relpos.config import TransformerConfig
from tf_relpos.decoder_block import DecoderBlock
from tf_relpos.encoder_block import EncoderBlock
from tf_relpos.graph_relations import (
    edge_relations,
    joint_relations,
    path_relations,
    stack_relations,
)
from tf_relpos.positions import SinusoidalPositionEncoding
from tf_relpos.relation_aware_attention import RelationAwareAttention
from tf_relpos.relative_attention import RelativeMultiHeadAttention
from tf_relpos.relative_positions import relative_position_ids
from tf_relpos.sampling import greedy_search, sample
from tf_relpos.training import WarmupInverseSqrt, smoothed_cross_entropy
from tf_relpos.transformer import Transformer

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "RelationAwareAttention",
    "RelativeMultiHeadAttention",
    "SinusoidalPositionEncoding",
    "Transformer",
    "TransformerConfig",
    "WarmupInverseSqrt",
    "beam_search",
    "edge_relations",
    "greedy_search",
    "joint_relations",
    "path_relations",
    "relative_position_ids",
    "sample",
    "smoothed_cross_entropy",
    "stack_relations",
]

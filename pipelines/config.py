"""The configuration of a run: what is trained, on which text, and how. Plain dataclasses.

Each field is a flag of the command lines, its docstring the flag's help.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simple_parsing import choice

from pipelines.corpora.corpus import Corpus
from pipelines.corpora.demo.corpus import DemoCorpus
from pipelines.corpora.text_files import TextFileCorpus
from pipelines.corpora.tfds import TfdsCorpus
from pipelines.errors import InputError
from pipelines.flag_checks import check_seed
from tf_relpos.config import PRESETS, TransformerConfig

_MAX_LENGTH = 1 << 20  # of a side of a pair, in subwords
_LARGEST = 3e38  # that single precision holds, nearly


@dataclass(frozen=True)
class CorpusConfig:
    """Which text; files of your own take the place of --dataset."""

    dataset: str = "demo"
    """demo, wmt14_translate/de-en, wmt14_translate/fr-en or wmt_t2t_translate/de-en"""
    train_source: list[str] | None = None
    """parallel text to train on, plain or gzipped: one or several files, a sentence a line"""
    train_target: list[str] | None = None
    """its translations, line by line"""
    valid_source: str | None = None
    """text to validate on"""
    valid_target: str | None = None
    """its translations"""
    test_source: str | None = None
    """text to test on at the end"""
    test_target: str | None = None
    """its translations"""
    train_tsv: list[str] | None = None
    """instead of train_source and train_target: files with source, tab, translation on a line"""
    valid_tsv: str | None = None
    """text to validate on, likewise"""
    test_tsv: str | None = None
    """text to test on, likewise"""
    corpus_weights: list[int] | None = None
    """of several files to train on, how many times an epoch the pairs of each are drawn"""
    source_language: str = "en"
    """code of the source language"""
    target_language: str = "de"
    """code of the target language"""
    tokenizer: str | None = None
    """an existing SentencePiece model to use instead of learning subwords from the text"""
    subword_model: str | None = choice("unigram", "bpe", "word", default=None)
    """how subwords are learnt from the text; word takes its words as they are, of text that is
    already cut into subwords; unigram unless given"""
    max_length: int = 256
    """pairs with more subwords on a side are dropped, the end mark included"""
    num_shapes: int = 48
    """the most length buckets; more waste less on padding and compile longer"""

    def __post_init__(self) -> None:
        if self.subword_model and self.tokenizer:
            raise InputError(
                "subword_model must not be given with --tokenizer, whose subwords are used; got "
                f"{self.subword_model}"
            )
        if self.max_length < 2:
            raise InputError(
                f"max_length must be at least 2 (a subword and the end mark), got {self.max_length}"
            )
        if self.max_length > _MAX_LENGTH:
            raise InputError(f"max_length must be at most {_MAX_LENGTH:,}, got {self.max_length}")
        if self.num_shapes < 1:
            raise InputError(f"num_shapes must be at least 1, got {self.num_shapes}")

    def corpus(self) -> Corpus:
        """The corpus that the fields describe; nothing of it is read, downloaded or imported yet.

        Raises:
            InputError: files that do not exist, an unknown data set, or a contradiction.
        """
        if self.is_own_text:
            if self.dataset != "demo":
                raise InputError(
                    f"dataset must not be given with train_source or train_tsv, got {self.dataset}"
                )
            return TextFileCorpus(
                self.train_source or [],
                self.train_target or [],
                self.valid_source,
                self.valid_target,
                self.test_source,
                self.test_target,
                self.source_language,
                self.target_language,
                train_tsv=self.train_tsv,
                valid_tsv=self.valid_tsv,
                test_tsv=self.test_tsv,
                weights=self.corpus_weights,
            )
        for name in (*HELD_OUT_TEXT, "corpus_weights"):
            if getattr(self, name):
                raise InputError(f"{name} needs train_source and train_target, or train_tsv")
        if not self.is_demo:
            return TfdsCorpus(self.dataset, self.source_language, self.target_language)
        if (self.source_language, self.target_language) != ("en", "de"):
            raise InputError(
                "the demo corpus goes from en to de, got "
                f"{self.source_language} to {self.target_language}"
            )
        return DemoCorpus(train_pairs=DEMO_PAIRS)

    @property
    def is_demo(self) -> bool:
        return self.dataset == "demo" and not self.is_own_text

    @property
    def is_own_text(self) -> bool:
        return bool(self.train_source or self.train_target or self.train_tsv)


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults are those of the preset."""

    steps: int = 100_000
    """optimizer updates"""
    tokens_per_replica: int = 4096
    """source and target tokens, each, that a replica takes at a time"""
    tokens_per_step: int = 0
    """add up the gradients of batches up to this many target tokens an update; 0: of one batch"""
    warmup_steps: int = 4000
    """updates until the learning rate is at its highest"""
    learning_rate_scale: float = 1.0
    """factor on the learning rate, model_dim^-0.5 min(s^-0.5, s warmup_steps^-1.5)"""
    cooldown: float = 0.0
    """share of the updates, the last ones, over which the learning rate falls to 0; 0: none"""
    beta_1: float = 0.9
    """of Adam"""
    beta_2: float = 0.98
    """of Adam"""
    epsilon: float = 1e-9
    """of Adam"""
    clip_norm: float = 0.0
    """scale gradients down to this norm, taken over all of them; 0: never"""
    skip_non_finite: bool = False
    """skip updates whose loss or gradient is not finite, instead of stopping"""
    label_smoothing: float = 0.1
    """probability taken from the target and shared by all other subwords"""
    r_drop: float = 0.0
    """weight of the divergence of two passes over each batch with other dropout, say 5, in about
    twice the time and memory (R-Drop, Wu et al. 2021); 0: one pass"""
    initialize_from: str | None = None
    """the directory of a run to start from: its weights, model and subwords, a new optimizer"""
    freeze: str = ""
    """parts not to train, with commas between: embedding, encoder, decoder, encoder_0, ..."""
    subword_sampling: float = 0.0
    """draw the subwords anew each time, by their probability to this power, say 0.3; 0: never"""
    seed: int = 1
    """of initial weights, order of the data, sampled subwords, and dropout"""
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    """auto is mixed_bfloat16 where the device is fast at it"""
    jit: Literal["auto", "on", "off"] = "auto"
    """compile forward and backward pass with XLA; auto does on GPUs, and on CPUs what is bound by
    memory"""
    strategy: Literal["auto", "one", "mirrored", "multi_worker"] = "auto"
    """auto is mirrored where there are several devices; multi_worker: those of TF_CONFIG"""
    virtual_cpus: int = 0
    """split the CPU into this many devices, to rehearse a run on several GPUs"""
    valid_every: int = 2000
    """updates between validations (greedy BLEU, perplexity, accuracy); 0: never"""
    patience: int = 0
    """stop after this many validations in a row without a better score (BLEU, or if that is
    the same, perplexity); 0: never"""
    checkpoint_every: int = 1000
    """updates between checkpoints; 0: none by updates"""
    checkpoint_minutes: float = 10.0
    """minutes between checkpoints; 0: none by time"""
    keep_checkpoints: int = 5
    """the last checkpoints to keep, besides the best; those to be averaged are kept in any case"""
    average_checkpoints: int = 1
    """average this many last checkpoints for the test score and the export; 1: use the best"""
    log_every: int = 50
    """updates between lines of progress"""

    def __post_init__(self) -> None:
        for name in ("steps", "tokens_per_replica", "warmup_steps", "log_every"):
            self._check(name, "at least 1", getattr(self, name) >= 1)
        check_seed(self.seed)
        for name in ("tokens_per_step", "virtual_cpus", "valid_every", "checkpoint_every"):
            self._check(name, "at least 0", getattr(self, name) >= 0)
        self._check("patience", "at least 0", self.patience >= 0)
        if self.patience and not self.valid_every:
            raise InputError("patience needs validations, but valid_every is 0")
        for name in ("steps", "warmup_steps", "tokens_per_replica", "tokens_per_step"):
            self._check(name, "below 2,147,483,648", getattr(self, name) < 1 << 31)
        self._check("virtual_cpus", "at most 64", self.virtual_cpus <= 64)
        self._check("checkpoint_minutes", "at least 0", self.checkpoint_minutes >= 0)
        self._check("subword_sampling", "from 0 to 10", 0 <= self.subword_sampling <= 10)
        self._check("clip_norm", "at least 0", self.clip_norm >= 0)
        self._check("r_drop", "from 0 to 3e38", 0 <= self.r_drop <= _LARGEST)
        for name in ("keep_checkpoints", "average_checkpoints"):
            self._check(name, "at least 1", getattr(self, name) >= 1)
        scale = self.learning_rate_scale
        self._check("learning_rate_scale", "above 0 and at most 3e38", 0 < scale <= _LARGEST)
        # Below, single precision has none that hardware does not take for 0.
        self._check("epsilon", "from 1e-37 to 3e38", 1e-37 <= self.epsilon <= _LARGEST)
        self._check("cooldown", "from 0 to 1", 0 <= self.cooldown <= 1)
        for name in ("beta_1", "beta_2", "label_smoothing"):
            self._check(name, "at least 0 and below 1", 0 <= getattr(self, name) < 1)

    def check_tokens_per_step(self, replicas: int) -> None:
        """Checks that an update takes a batch of each replica at least.

        Not when the fields are read: runs that did not are there.

        Raises:
            InputError: it does not.
        """
        if 0 < self.tokens_per_step < self.tokens_per_replica * replicas:
            of_replicas = f" of {replicas} replicas together" if replicas > 1 else ""
            raise InputError(
                f"tokens_per_step must be 0 or at least tokens_per_replica{of_replicas}, "
                f"{self.tokens_per_replica * replicas:,}, got {self.tokens_per_step:,}"
            )

    def check_splits(self, splits: Sequence[str]) -> None:
        """Checks that there is the text that the fields need.

        Raises:
            InputError: there is not.
        """
        if self.patience and "valid" not in splits:
            raise InputError(
                "patience needs text to validate on (--valid_source and --valid_target, or "
                f"--valid_tsv), got {self.patience}"
            )

    def _check(self, name: str, rule: str, holds: bool) -> None:
        if not holds:
            raise InputError(f"{name} must be {rule}, got {getattr(self, name)}")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes; `config.json` in its directory."""

    preset: str
    model: TransformerConfig
    corpus: CorpusConfig
    training: TrainingConfig

    def __post_init__(self) -> None:
        if self.training.subword_sampling and self.corpus.subword_model not in (None, "unigram"):
            raise InputError(
                f"subword_sampling needs subword_model unigram, got {self.corpus.subword_model}"
            )
        model = self.model
        has_dropout = any((model.dropout, model.attention_dropout, model.inner_dropout))
        if self.training.r_drop and not has_dropout:
            raise InputError(f"r_drop needs dropout, which is 0, got {self.training.r_drop}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def flags(self, prepared: str | None = None) -> dict[str, Any]:
        """The flags of `train_wmt` that stand for it, in tables; None for one that is not given.

        Args:
            prepared: the preparation that was trained on, if it was one, which decides some.
        """
        left_out = DECIDED_BY_PREPARATION if prepared else set()
        if self.corpus.is_own_text:
            left_out = left_out | {"dataset"}
        flags: dict[str, Any] = {"preset": self.preset, "prepared": prepared}
        for title in ("corpus", "model", "training"):
            table = getattr(self, title)
            fields = [f for f in dataclasses.fields(table) if f.metadata.get("cmd", True)]
            names = [field.name for field in fields if field.name not in left_out]
            flags[title] = {name: getattr(table, name) for name in names}
        return flags

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "RunConfig":
        """Raises KeyError, TypeError or ValueError if the values are not a configuration's."""
        return cls(
            preset=values["preset"],
            model=TransformerConfig(**values["model"]),
            corpus=CorpusConfig(**values["corpus"]),
            training=TrainingConfig(**values["training"]),
        )

    def difference(self, other: "RunConfig", *, with_remedies: bool = False) -> str | None:
        """The first field in which training would differ: "name a here, b there".

        Args:
            other: another configuration.
            with_remedies: whether `REMEDIES` count, which a run may be resumed with.
        """
        is_own_text = self.corpus.is_own_text or other.corpus.is_own_text
        may_change = MAY_CHANGE - set(REMEDIES if with_remedies else ())
        if self.training.cooldown or other.training.cooldown:
            may_change = may_change - {"steps"}  # which say when it begins
        for section in ("model", "corpus", "training"):
            mine, theirs = (dataclasses.asdict(getattr(c, section)) for c in (self, other))
            for name in mine:
                if name in TEXT or (name == "dataset" and is_own_text):
                    continue
                if name not in may_change and mine[name] != theirs[name]:
                    return f"{name} {mine[name]!r}, not {theirs[name]!r}"
        return None


# What may change when a run is resumed: what helps after a loss that is not finite; else when it
# ends and what it writes, not what it computes. The precision that a flag leads to is compared by
# `pipelines.run.provenance`, which knows the machine's choice as well.
REMEDIES = ("clip_norm", "skip_non_finite", "learning_rate_scale")
MAY_CHANGE = {
    *REMEDIES,
    "precision",
    "steps",
    "valid_every",
    "patience",
    "checkpoint_every",
    "checkpoint_minutes",
    "keep_checkpoints",
    "average_checkpoints",
    "log_every",
}

# Where the text and its subwords lie, and how often it is read: what was made of it is compared by
# checksums.
HELD_OUT_TEXT = tuple(
    f"{split}_{side}" for split in ("valid", "test") for side in ("source", "target", "tsv")
)
_TRAIN_TEXT = ("train_source", "train_target", "train_tsv", "corpus_weights")
TEXT = {*_TRAIN_TEXT, *HELD_OUT_TEXT, "tokenizer", "subword_model"}

# What `pipelines.prepare` settles: these flags would do nothing beside --prepared.
DECIDED_BY_PREPARATION = {
    "vocabulary_size",
    *(field.name for field in dataclasses.fields(CorpusConfig)),
}

DEMO_PAIRS = 50_000

# How the presets of `tf_relpos` were trained: Shaw et al. 2018, section 4.1; Vaswani et al. 2017,
# section 5; tensor2tensor's hyper-parameter sets.
_BIG = {
    "steps": 300_000,
    "checkpoint_every": 0,
    "checkpoint_minutes": 10.0,
    "average_checkpoints": 20,
}
_T2T = {"warmup_steps": 8000, "beta_2": 0.997}
TRAINING_PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "steps": 4000,
        "warmup_steps": 600,
        "learning_rate_scale": 1.5,
        "valid_every": 500,
        "checkpoint_every": 500,
    },
    "base": {},
    "big": _BIG,
    "vaswani_base": {"average_checkpoints": 5},
    "vaswani_big": _BIG,
    "t2t_relative_base": _T2T,
    "t2t_relative_big": {**_T2T, **_BIG},
}

# The demo corpus has one right translation for each of its sentences, which come once or twice: no
# dropout, and half of the layers of `tiny`. The rest was chosen by validation, of a few candidates.
_DEMO_CORPUS: dict[str, Any] = {"num_shapes": 8}
_DEMO_MODEL: dict[str, Any] = {"vocabulary_size": 900, "dropout": 0.0}
_DEMO_LAYERS = {"tiny": {"encoder_layers": 2, "decoder_layers": 2}}
_DEMO_TRAINING: dict[str, Any] = {
    "steps": 1100,
    "tokens_per_replica": 2048,
    "warmup_steps": 150,
    "learning_rate_scale": 1.0,
    "cooldown": 0.5,
    "valid_every": 550,
    "checkpoint_every": 550,
}


def default_config(preset: str, *, demo: bool) -> RunConfig:
    """What a preset stands for before other flags change it.

    Raises:
        InputError: unknown preset.
    """
    if preset not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {preset}")
    model: dict[str, Any] = {}
    corpus: dict[str, Any] = {}
    training = TRAINING_PRESETS[preset]
    if demo:
        corpus = _DEMO_CORPUS
        model = _DEMO_MODEL | _DEMO_LAYERS.get(preset, {})
        training = training | _DEMO_TRAINING
    return RunConfig(
        preset=preset,
        model=TransformerConfig.preset(preset, **model),
        corpus=CorpusConfig(**corpus),
        training=TrainingConfig(**training),
    )

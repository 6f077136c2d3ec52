"""Whether one translation of a text is better than another, or that is chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest

from pipelines.progress import progress

SAMPLES = 1000


@dataclass(frozen=True)
class Difference:
    """How much a score differs from a baseline's, and whether that is chance.

    Attributes:
        name: of the metric.
        baseline: its corpus score.
        difference: how much higher the other score is; of TER, lower is better.
        p_value: sacreBLEU's: how often the difference in a sample, less their mean, exceeds this
            one. It looks in one direction: of two systems that are equally good it is below 0.05 in
            about a tenth of all comparisons.
        signature: of the metric and of the test.
    """

    name: str
    baseline: float
    difference: float
    p_value: float
    signature: str


@progress("comparing")
def paired_bootstrap(
    metrics: Mapping[str, Metric],
    baseline: Sequence[str],
    translations: Sequence[str],
    references: Sequence[Sequence[str]],
) -> dict[str, Difference]:
    """Paired bootstrap resampling of `SAMPLES` test sets, the same each time.

    Args:
        metrics, translations, references: see `pipelines.run.metrics.compute`.
        baseline: other translations of the same text.

    Reference: Koehn 2004, in sacreBLEU's implementation.
    """
    systems = [("baseline", list(baseline)), ("translations", list(translations))]
    test = PairedTest(systems, metrics, references, test_type="bs", n_samples=SAMPLES)
    signatures, results = test()
    differences = {}
    for key, (name, signature) in zip(metrics, signatures.items(), strict=True):
        before, after = results[name]
        difference = after.score - before.score
        # Without any difference between the two, sacreBLEU's p-value is the smallest there is.
        p_value = after.p_value if difference else 1.0
        differences[key] = Difference(name, before.score, difference, p_value, str(signature))
    return differences

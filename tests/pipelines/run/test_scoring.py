"""Scores by the length of the sentences."""

from pipelines.run.metrics import compute, sacrebleu_metrics
from pipelines.run.scoring import scores_by_length


def test_each_range_has_the_scores_of_its_sentences():
    sources = ["a b c d e", "a", "b c d e f g h", "b"]
    references = ["the old dog sleeps in here", "one", "two cats and a dog run there", "two"]
    translations = ["the old dog sleeps in there", "one", "two cats and a dog sit there", "three"]
    metrics = sacrebleu_metrics("en")
    short, long = scores_by_length(metrics, sources, translations, [references], 2)
    assert (short["shortest"], short["longest"], short["sentences"]) == (1, 1, 2)
    assert (long["shortest"], long["longest"], long["sentences"]) == (5, 7, 2)
    for found, members in ((short, (1, 3)), (long, (0, 2))):
        some = [[lines[n] for n in members] for lines in (translations, references)]
        for name, score in compute(metrics, some[0], [some[1]]).items():
            assert found[name] == score.score

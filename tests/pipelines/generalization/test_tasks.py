"""What is tested, in which bins, and how it is counted."""

import pytest

from pipelines.corpora.text_files import TextFileCorpus
from pipelines.errors import InputError
from pipelines.generalization.tasks import CommandsTask, TextTask, check_words, exact_match


@pytest.fixture
def corpus(tmp_path):
    """Sentences of 1 to 8 words to train on."""
    for name in ("train.en", "train.de", "test.en", "test.de"):
        (tmp_path / name).write_text("".join(f"{'x ' * n}\n" for n in range(1, 9)))
    return TextFileCorpus(
        tmp_path / "train.en",
        tmp_path / "train.de",
        test_source=tmp_path / "test.en",
        test_target=tmp_path / "test.de",
    )


def test_exact_match_is_of_whole_sentences():
    references = ["WALK WALK RUN", "RUN", "WALK", "RUN RUN"]
    translations = ["WALK WALK RUN", " RUN ", "WALK WALK", ""]
    assert exact_match(translations, references).score == 50.0
    assert exact_match(references, references).score == 100.0


def test_a_text_has_bins_on_either_side_of_the_longest_trained(corpus):
    task = TextTask(corpus, share=0.5, bins=2)
    (short,) = task.corpora
    assert short.longest == 4
    sources = ["x " * n for n in (7, 1, 5, 3, 4, 2, 6, 9)]
    columns = task.columns(short, sources, sources)
    assert [column.label for column in columns] == ["1–2", "3–4", "5–6", "7–9"]
    assert [column.place for column in columns] == [1.5, 3.5, 5.5, 8.0]
    assert [list(column.members) for column in columns] == [[1, 5], [3, 4], [2, 6], [0, 7]]
    with pytest.raises(InputError, match="must have sources of more than 4 words, .* has 3$"):
        task.columns(short, sources[3:4], sources[3:4])


def test_a_text_is_scored_by_bleu(corpus):
    lines = ["the old dog sleeps here", "the cat sleeps there now"]
    score = TextTask(corpus, share=0.5, bins=2).score(lines, lines)
    assert (score.name, round(score.score)) == ("BLEU", 100)


def test_a_text_needs_a_test_set(tmp_path):
    (tmp_path / "train.en").write_text("a b\n")
    with pytest.raises(InputError, match="scores by length need text to score on: --test_source"):
        TextTask(TextFileCorpus(tmp_path / "train.en", tmp_path / "train.en"), 0.5, 2)


def test_each_cutoff_has_a_column_of_all_that_is_longer(corpus):
    task = CommandsTask(corpus, [6, 4])
    assert [short.longest for short in task.corpora] == [4, 6]
    sources, references = zip(*task.corpora[0].pairs("test"), strict=True)
    (column,) = task.columns(task.corpora[0], sources, references)
    assert (column.label, column.place, column.shortest, column.longest) == ("4", 4, 5, 8)
    assert list(column.members) == [0, 1, 2, 3]


def test_actions_that_no_translation_can_reach_are_refused(corpus):
    task = CommandsTask(corpus, [4])
    (short,) = task.corpora
    assert task.columns(short, ["run often"], ["RUN " * 52])
    with pytest.raises(InputError, match="at most 50 more than .*; got 53 for 'run often'"):
        task.columns(short, ["run often"], ["RUN " * 53])


def test_a_word_of_longer_commands_alone_cannot_be_learnt(tmp_path):
    (tmp_path / "c").write_text("jump\nwalk twice\nrun thrice\n")
    (tmp_path / "a").write_text("J\nW W\nR R R\n")
    commands = TextFileCorpus(tmp_path / "c", tmp_path / "a")
    check_words(commands, 12, longest=3)
    with pytest.raises(InputError, match="vocabulary_size must be at least 12, for the 8 words"):
        check_words(commands, 11, longest=3)
    with pytest.raises(InputError, match="every word to train on, but 'R' stands with more than 2"):
        check_words(commands, 12, longest=2)

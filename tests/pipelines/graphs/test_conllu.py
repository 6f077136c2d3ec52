"""CoNLL-U files: what is read of them, as edges, and what is refused."""

import gzip
import lzma

import numpy as np
import pytest

from pipelines.graphs.conllu import edges_of_sentence, part_of_speech_task, read_conllu, read_task
from tests.support.refusals import refused
from tests.support.sentences import write_conllu

pytestmark = pytest.mark.tensorflow_only

TEXT = """# sent_id = 1
# text = They've gone home
1-2\tThey've\t_\t_\t_\t_\t_\t_\t_\t_
1\tThey\tthey\tPRON\tPRP\t_\t3\tnsubj\t3:nsubj\t_
2\t've\thave\tAUX\tVBP\t_\t3\taux\t3:aux\t_
3\tgone\tgo\tVERB\tVBN\t_\t0\troot\t0:root\t_
3.1\tback\t_\tADV\t_\t_\t_\t_\t3:advmod\t_
4\thome\thome\tADV\tRB\t_\t3\tadvmod:lmod\t3:advmod:lmod\t_
"""


@pytest.mark.parametrize("packed", [None, gzip, lzma], ids=["plain", "gzip", "xz"])
def test_words_and_edges(tmp_path, packed):
    path = tmp_path / "text.conllu"
    path.write_bytes(packed.compress(TEXT.encode()) if packed else TEXT.encode())
    (sentence,) = read_conllu(str(path))
    assert sentence.forms == ("They", "'ve", "gone", "home")
    assert sentence.tags == ("PRON", "AUX", "VERB", "ADV")
    labels = {"nsubj": 0, "root": 1, "advmod": 2}
    edges = edges_of_sentence(sentence, labels)  # aux has no number, advmod:lmod has advmod's
    np.testing.assert_array_equal(edges, [(2, 0, 0), (2, 2, 1), (2, 3, 2)])
    task = part_of_speech_task([sentence], [])
    assert task.labels == ("advmod", "advmod:lmod", "aux", "nsubj", "root")
    assert [task.classes[i] for i in task.train[0].targets] == [*sentence.tags]
    assert set(task.train[0].nodes) == {1}  # all words look the same


ROW = "1\tgone\tgo\tVERB\tVBN\t_\t0\troot\t0:root\t_\n"
BAD = {
    "": "at least one sentence",
    "# a comment\n\n": "at least one sentence",
    "1 word\n": "sentence 1 is not",
    ROW + "\n" + ROW.replace("VERB", "_"): "sentence 2 is not: word 1 has no upos",
    ROW.replace("root\t0", "_\t0"): "word 1 has no deprel",
    ROW.replace("VERB", ""): "word 1 has no upos",
    "1\tgone\n": "sentence 1 is not: word 1 has no upos",
    "# global.columns = ID UPOS DEPREL\n1\tVERB\troot\n": "word 1 has the head None",
    "1\tgone\tgo\tVERB\n": "sentence 1 is not: word 1 has no deprel",
    "1\tgone\tgo\tVERB\tVBN\t_\t0\n": "word 1 has no deprel",
    ROW + "\n" + ROW.replace("1", "1.1", 1): "sentence 2 is not: it has no word",
    ROW.replace("\t0\t", "\t2\t"): "word 1 has the head 2",
    ROW.replace("\t0\t", "\tx\t"): "sentence 1 is not",
    ROW.replace("1", "2", 1): "word 1 has the number 2",
}


@pytest.mark.parametrize("text, message", BAD.items(), ids=BAD.values())
def test_bad_files_are_refused(tmp_path, text, message):
    path = tmp_path / "text.conllu"
    path.write_text(text)
    with refused(message) as told:
        [*read_conllu(str(path))]
    assert str(path) in str(told.value)


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "text.conllu.xz"
    path.write_bytes(lzma.compress(TEXT.encode() * 99)[:-20])
    with refused("xz file must be whole"):
        [*read_conllu(str(path))]


def test_the_last_sentences_are_held_out(tmp_path):
    path = str(write_conllu(tmp_path / "text.conllu", 10))
    task, whole = read_task(path, None, 0.3), read_task(path, path, 0.0)
    assert len(task.train) == 7
    for found, graph in zip((*task.train, *task.test), whole.train, strict=True):
        assert found.names == graph.names
    with refused("hold_out"):
        read_task(path, None, 0.01)
    with refused("test must name files that exist"):
        read_task(path, str(tmp_path / "absent"), 0.0)

"""Generated dependency trees as CoNLL-U, whose parts of speech follow from the labels."""

import random

TAGS = {"root": "VERB", "nsubj": "NOUN", "obj": "NOUN", "det": "DET", "amod": "ADJ"}


def sentence(rng):
    """Rows of a random tree; the child of a noun tells a proper noun: it has no article."""
    size = rng.randint(2, 6)
    heads = [0] + [rng.randint(1, i) for i in range(1, size)]
    labels = ["root"] + [rng.choice([*TAGS][1:]) for _ in heads[1:]]
    with_article = {heads[i] for i, label in enumerate(labels) if label == "det"}
    rows = []
    for word, (head, label) in enumerate(zip(heads, labels, strict=True), start=1):
        tag = TAGS[label]
        if tag == "NOUN" and word not in with_article:
            tag = "PROPN"
        rows.append(f"{word}\tw{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_")
    return rows


def write_conllu(path, count, seed=0):
    rng = random.Random(seed)
    blocks = ["\n".join(["# text = any", *sentence(rng)]) for _ in range(count)]
    path.write_text("\n\n".join(blocks) + "\n\n", encoding="utf-8")
    return path

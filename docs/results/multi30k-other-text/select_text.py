"""Other text that a model's subwords can say, to train it on beside its own:

python select_text.py tokenizer.model other.en other.de selected.en selected.de own.en ...

Takes the pairs whose sides have no unknown subword, at most 2.3 subwords a word and 40 subwords,
and whose source is in none of the last files: the text itself, and what it is tested on.
"""

import sys
from pathlib import Path

import sentencepiece

MOST_PER_WORD, LONGEST = 2.3, 40


def lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


model, source, target, to_source, to_target, *known = sys.argv[1:]
processor = sentencepiece.SentencePieceProcessor(model_file=model)
left_out = {line for path in known for line in lines(path)}


def is_sayable(line: str) -> bool:
    ids = processor.encode(line)
    few = len(ids) <= min(LONGEST, MOST_PER_WORD * len(line.split()))
    return few and processor.unk_id() not in ids


pairs = [
    pair
    for pair in zip(lines(source), lines(target), strict=True)
    if pair[0] not in left_out and all(map(is_sayable, pair))
]
for path, side in ((to_source, 0), (to_target, 1)):
    text = "".join(f"{pair[side]}\n" for pair in pairs)
    Path(path).write_text(text, encoding="utf-8")
print(f"{len(pairs):,} pairs")

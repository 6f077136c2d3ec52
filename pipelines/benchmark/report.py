"""The tables of docs/pages/speed.md, made of the results of several benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.files.markdown import table_of

Results = Mapping[str, Any]


def training_steps(steps: Sequence[Results], memories: Sequence[Results]) -> str:
    """Relative positions over sinusoids: updates a second, and memory where it was measured."""
    memory = {(m["settings"]["preset"], m["settings"]["precision"]): m for m in memories}
    head = ["preset", "precision", "ids a side", "length", "updates/s over sinusoidal"]
    head += ["memory over sinusoidal, at length 64", "sinusoidal"]
    rows = []
    for step in steps:
        settings = step["settings"]
        found = memory.get((settings["preset"], settings["precision"]))
        cells = ["", ""]
        if found:
            size = found["megabytes"]
            ratio = size["relative"] / size["sinusoidal"]
            cells = [f"{ratio:.3f}", f"{size['sinusoidal']:,.0f} MB"]
        rate = 1 / step["ratios"]["relative"]
        name = settings["precision"].removeprefix("mixed_")
        sizes = [f"{settings['tokens']:,}", str(settings["length"])]
        rows.append([f"`{settings['preset']}`", name, *sizes, f"{rate:.3f}", *cells])
    return table_of(head, rows)


def trainings(results: Mapping[str, Results]) -> str:
    """Beside OpenNMT-tf, by preset."""
    head = ["preset", "", "source and target tokens/s", "of OpenNMT-tf's", "GFLOP/s"]
    head += ["share of a matrix product's"]
    rows = [
        [
            f"`{preset}`",
            record["name"].replace("mixed_", ""),
            f"{record['tokens_per_second']:,.0f}",
            f"{record['over_opennmt_tf']:.2f}",
            f"{record['operations_per_second'] / 1e9:.0f}",
            f"{record['share_of_peak']:.0%}",
        ]
        for preset, result in results.items()
        for record in result["training"]
    ]
    return table_of(head, rows)


def decoding(results: Mapping[str, Results]) -> str:
    """Beside CTranslate2, by name of the model; a SavedModel in bfloat16 where one was measured."""
    head = ["model", "batch", "CTranslate2, sentences/s", "SavedModel", "TFLite", "the same"]
    records = [record for result in results.values() for record in result["decoding"]]
    has_bfloat16 = any(_IN_BFLOAT16 in record["same"] for record in records)
    if has_bfloat16:
        head += ["SavedModel bfloat16", "the same"]
    rows = []
    for name, result in results.items():
        for record in result["decoding"]:
            shares = record["over_ctranslate2"]
            same = min(record["same"][form] for form in _FORMS if form in shares)
            cells = [f"{shares[form]:.2f}" if form in shares else "" for form in _FORMS]
            theirs = f"{record['per_s']['ctranslate2']:.1f}"
            rows.append([name, str(record["batch"]), theirs, *cells])
            rows[-1].append(f"{same} of {record['sentences']}")
            if _IN_BFLOAT16 in shares:
                rows[-1].append(f"{shares[_IN_BFLOAT16]:.2f}")
                rows[-1].append(f"{record['same'][_IN_BFLOAT16]} of {record['sentences']}")
            elif has_bfloat16:
                rows[-1] += ["", ""]
    return table_of(head, rows)


_FORMS = ("saved_model", "tflite")
_IN_BFLOAT16 = "saved_model_bfloat16"


def callers(results: Results) -> str:
    """Several callers of one SavedModel, straight and gathered into batches."""
    head = ["callers", "straight, sentences/s", "95% within", "gathered, sentences/s"]
    head += ["95% within", "sentences a batch"]
    rows = []
    for record in results["callers"]:
        straight, gathered = record["straight"], record["gathered"]
        cells = [f"{straight['per_s']:.1f}", f"{straight['percentile_95_ms']:.0f} ms"]
        cells += [f"{gathered['per_s']:.1f}", f"{gathered['percentile_95_ms']:.0f} ms"]
        rows.append([str(record["callers"]), *cells, f"{gathered['batch']:.1f}"])
    return table_of(head, rows)


def memory(results: Results) -> str:
    """A layer beside Keras's, in graphs that know the lengths, and that do not."""
    head = ["", "T", "Keras", "here", "Keras, lengths unknown", "here"]
    found = {(m["training"], m["mode"], m["T"]): m for m in results["memory"]}
    rows = []
    for training, name in ((False, "forward"), (True, "training")):
        for length in results["settings"]["lengths"]:
            pairs = [found[training, mode, length] for mode in ("graph", "unknown lengths")]
            sizes = [pair[key] for pair in pairs for key in ("keras", "relative")]
            rows.append([name, f"{length:,}", *(f"{size:,.0f} MB" for size in sizes)])
    return table_of(head, rows)


def attention_on_gpu(results: Results) -> str:
    """Times over plain attention's, which are told in ms, and memory, by preset and length."""
    columns = {"auto": "core", "transpose_reshape": "the paper's form", "keys": "key term alone"}
    columns |= {"flex": "FlexAttention, key term alone", "cudnn": "cuDNN, no positions"}
    columns |= {"layer": "layer", "layer of Keras": "layer of Keras"}
    head = ["preset", "T", "plain", *columns.values(), "memory, plain", "memory, core"]
    rows = []
    for record in sorted(results["attention"], key=lambda r: (r["preset"], r["T"])):
        found, size = record["over_plain"], record["megabytes"]
        cells = [f"{found[name]:.2f}" if name in found else "" for name in columns]
        plain = f"{1000 * record['seconds']['plain']:.2f} ms"
        memory = [f"{size[name]:,.0f} MB" for name in ("plain", "auto")]
        rows.append([f"`{record['preset']}`", f"{record['T']:,}", plain, *cells, *memory])
    return table_of(head, rows)

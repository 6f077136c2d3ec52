"""The tables in the documents are those of the committed results."""

import json
import re
from statistics import median

import pytest

from pipelines.benchmark import attention, forms, report, web
from pipelines.classification import report as positions_report
from pipelines.classification.models import POSITIONS
from pipelines.corpora.demo.corpus import DemoCorpus
from pipelines.files.records import read_json
from pipelines.generalization import report as lengths
from pipelines.reproduction.report import markdown
from pipelines.run.metrics import sacrebleu_metrics
from pipelines.syntax import report as syntax_report
from tests.support.documents import PAGES, name, prose, read
from tests.support.runs import ROOT

BENCHMARKS = ROOT / "pipelines" / "benchmark" / "results"
RESULTS = sorted((ROOT / "docs" / "results").rglob("table-*.json"))


def test_there_are_results():
    assert RESULTS


@pytest.mark.parametrize("path", RESULTS, ids=name)
def test_a_table_is_made_of_its_json(path):
    assert markdown(json.loads(path.read_text(encoding="utf-8"))) in read(PAGES / "reproduction.md")


def test_an_ablation_is_made_of_its_json():
    path = ROOT / "docs" / "results" / "multi30k-ablation" / "ablation.json"
    found = read_json(path)
    assert markdown(found).strip() in read(PAGES / "small-text.md")
    kept = {directory.name for directory in path.parent.glob("runs/*")}
    assert kept == {run["run"] for row in found["rows"] for run in row["runs"]}


@pytest.mark.parametrize("corpus", ["demo", "demo-2200", "demo-3300"])
def test_scores_are_those_of_the_translations(corpus):
    """Of each run of the demo corpus that is kept: BLEU and chrF, computed again."""
    directory = ROOT / "docs" / "results" / corpus
    references = [target for _, target in DemoCorpus().pairs("test")]
    metrics = sacrebleu_metrics("de")
    told = {}
    for path in directory.glob("table-*.json"):
        runs = [run for row in read_json(path)["rows"] for run in row["runs"]]
        told |= {run["run"]: (run["bleu"], run["chrf"]) for run in runs}
    kept = {path.parent.name: path for path in directory.glob("runs/*/translations.txt")}
    assert kept and kept.keys() <= told.keys()
    for run, path in kept.items():
        given = read(path).splitlines(), [references]
        scores = [metrics[name].corpus_score(*given).score for name in ("bleu", "chrf")]
        assert told[run] == pytest.approx(scores, abs=1e-4)


def test_scores_by_length_are_made_of_their_json():
    paths = list((ROOT / "docs" / "results").rglob("lengths-*.json"))
    assert paths
    for path in paths:
        assert lengths.markdown(read_json(path)) in read(PAGES / "lengths.md"), path


def test_the_demo_without_positions_is_as_in_table_3():
    found = read_json(ROOT / "docs" / "results" / "demo" / "table-3.json")
    (neither,) = (row for row in found["rows"] if row["name"] == "neither")
    told = f"without positions it is {neither['bleu']['mean']:.1f}"
    assert told in read(ROOT / "README.md") and told in read(PAGES / "wmt14.md")


def test_the_share_of_commands_in_the_readme():
    found = read_json(ROOT / "docs" / "results" / "scan" / "lengths-commands.json")
    place = [column["label"] for column in found["columns"]].index("26")
    means = {row["label"]: (row["scores"][place] or {}).get("mean") for row in found["rows"]}
    told = prose(ROOT / "README.md")
    assert f"{means['relative']:.1f}% of the longer" in told
    assert f"{means['values only']:.1f}% with relative positions in the values alone" in told
    assert f"sinusoids {means['sinusoidal']:.1f}%" in told
    longer = read_json(ROOT / "docs" / "results" / "scan" / "values" / "lengths-commands.json")
    (row,), (column,) = longer["rows"], longer["columns"]
    assert (row["label"], column["label"]) == ("values only", "26")
    assert row["scores"][0]["least"] == 100.0
    assert [(run["seed"], run["step"]) for run in row["runs"]] == [(n, 30_000) for n in (1, 2, 3)]
    assert found["config"]["training"]["steps"] * 3 == 30_000
    assert "the values alone get all of them right, with each of three seeds" in told


def test_the_share_of_commands_in_bfloat16():
    found = read_json(ROOT / "docs" / "results" / "scan" / "bfloat16.json")
    (row,), (column,) = found["rows"], found["columns"]
    (run,) = row["runs"]
    assert (row["label"], column["label"]) == ("relative", "26")
    assert run["seed"] == 1 and run["device"].endswith("mixed_bfloat16")
    assert f"gave {row['scores'][0]['mean']:.2f}% at 26" in prose(PAGES / "lengths.md")


def test_the_news_model_is_as_scored():
    page, results = read(PAGES / "news.md"), ROOT / "docs" / "results" / "news"
    texts = {"mixed.newstest2013.en": "newstest2013", "tatoeba.test.en": "Tatoeba, test"}
    scores = read_json(results / "scores.json")
    assert [score["split"] for score in scores] == list(texts)
    for score, file in zip(scores, ("newstest2013.de", "tatoeba.de"), strict=True):
        ranges = score["by_length"]
        sentences = sum(found["sentences"] for found in ranges)
        assert len(read(results / file).splitlines()) == sentences
        whole = {"words": "all", "sentences": sentences, "bleu": score["bleu"]}
        rows = [{**whole, "chrf": score["chrf"]}]
        rows += [{**r, "words": f"{r['shortest']} to {r['longest']}"} for r in ranges]
        for row in rows:
            cells = [texts[score["split"]], row["words"], f"{row['sentences']:,}"]
            cells += [f"{row['bleu']:.2f}", f"{row['chrf']:.2f}"]
            assert f"| {' | '.join(cells)} |" in page
        assert score["signature"] in page and score["chrf_signature"] in page
    lines = [json.loads(line) for line in read(results / "history.jsonl").splitlines()]
    perplexities = [r["validation_perplexity"] for r in lines if "validation_perplexity" in r]
    assert len(perplexities) == 3
    assert all(f"{perplexity:.1f}" in page for perplexity in perplexities)


@pytest.mark.parametrize(("directory", "language"), [("long", "de"), ("french", "fr")])
def test_a_long_training_on_small_text_is_as_scored(directory, language):
    results = ROOT / "docs" / "results" / f"multi30k-{directory}"
    (score,) = read_json(results / "scores.json")
    page = read(PAGES / "small-text.md")
    for cells in ("bleu", "signature"), ("chrf", "chrf_signature"):
        number, signature = (score[name] for name in cells)
        assert f"| {number:.2f} | `{signature}` |" in page
    assert directory != "long" or f"reaches {score['bleu']:.1f}" in read(ROOT / "README.md")
    without_case = read_json(results / "lowercased.json")
    assert f"| {without_case['score']:.1f} | `{without_case['signature']}` |" in page
    lines = [json.loads(line) for line in read(results / "history.jsonl").splitlines()]
    bleu = {line["step"]: line["validation_bleu"] for line in lines if "validation_bleu" in line}
    assert max(bleu, key=bleu.get) == score["step"]
    for step in (2000, 4000, 6000, 8000):
        assert re.search(rf"{bleu[step]:.2f} after\s{step:,}", page)
    assert len(read(results / f"test_2016_flickr.{language}").splitlines()) == 1000


def test_a_wider_model_and_both_together_are_as_scored():
    results = ROOT / "docs" / "results"
    found = {
        (row["model"], row["text"], row["alpha"]): f"{row['bleu']:.2f}"
        for row in read_json(results / "multi30k-wide" / "scores.json")["scores"]
    }
    (long,) = read_json(results / "multi30k-long" / "scores.json")
    found["sampled", "test", 0.6] = f"{long['bleu']:.2f}"
    columns = [("valid", 0.6), ("valid", 1.5), ("valid", 2.0), ("test", 0.6), ("test", 1.5)]
    titles = {"sampled": "the above", "wide": "twice as wide", "both": "both"}
    for model, title in titles.items():
        cells = [title, *(found.pop((model, *column), "") for column in columns)]
        assert f"| {' | '.join(cells)} |".replace("  ", " ") in read(PAGES / "small-text.md")
    assert not found


def test_r_drop_at_the_end_is_as_scored():
    results, page = ROOT / "docs" / "results" / "multi30k-rdrop", read(PAGES / "small-text.md")
    bleu = {}
    for run in ("plain", "rdrop"):
        lines = map(json.loads, read(results / f"{run}.history.jsonl").splitlines())
        bleu |= {(run, r["step"]): r["validation_bleu"] for r in lines if "validation_bleu" in r}
    (score,) = read_json(results / "scores.json")
    told = (
        f"{bleu['plain', 2000]:.2f} before, {bleu['rdrop', 600]:.2f} after 600, "
        f"{bleu['rdrop', 2400]:.2f} after 2,400 and {bleu['rdrop', 4200]:.2f} after all 4,200"
    )
    assert told in page.replace("\n", " ") and max(bleu, key=bleu.get) == ("rdrop", score["step"])
    assert f"BLEU {score['bleu']:.2f} and chrF {score['chrf']:.2f}" in page
    assert score["signature"] in page and score["chrf_signature"] in page
    lines = read(ROOT / "docs/results/multi30k-wide/history.jsonl").splitlines()
    wide = max(json.loads(line).get("validation_bleu", 0) for line in lines)
    assert f"that model had {wide:.2f}" in page
    assert len(read(results / "test_2016_flickr.de").splitlines()) == 1000


def test_half_batches_are_as_scored():
    results, page = (
        ROOT / "docs" / "results" / "multi30k-half-batches",
        read(PAGES / "small-text.md"),
    )
    lines = map(json.loads, read(results / "half.history.jsonl").splitlines())
    greedy = {r["step"]: r["validation_bleu"] for r in lines if "validation_bleu" in r}
    scores = {
        (s["split"], s["checkpoint"], s["step"]): s for s in read_json(results / "scores.json")
    }
    test = scores.pop(("test", "best", 8000))
    without_case = read_json(results / "lowercased.json")
    assert without_case["signature"].startswith("nrefs:1|case:lc|")
    first, last, average = (f"{score['bleu']:.2f}" for score in scores.values())
    for told in (
        f"{greedy[4000]:.2f} after 4,000, {greedy[6000]:.2f} after 6,000, where the cooldown",
        f"{greedy[8000]:.2f} after 8,000 and {greedy[12000]:.2f} after all 12,000",
        f"with beam 4 {first} after 8,000, {last} at the end, and {average} for the average",
        f"BLEU {test['bleu']:.2f} ({without_case['score']:.1f} without case)",
        f"without case) and chrF {test['chrf']:.2f}",
    ):
        assert told in page.replace("\n", " ")
    assert [*scores] == [
        ("valid", "best", 8000),
        ("valid", "last", 12000),
        ("valid", "average", 12000),
    ]
    assert max(scores.values(), key=lambda score: score["bleu"])["step"] == test["step"]
    assert len(read(results / "test_2016_flickr.de").splitlines()) == 1000


def validated(path):
    """The records of validations in a history, by their steps."""
    lines = map(json.loads, read(path).splitlines())
    return {r["step"]: r for r in lines if "validation_bleu" in r}


def scored_on_the_test_set(results, test, language="de"):
    """What is told of the scores of translations that are kept."""
    assert len(read(results / f"test_2016_flickr.{language}").splitlines()) == 1000
    without_case = read_json(results / "lowercased.json")
    assert without_case["signature"].startswith("nrefs:1|case:lc|")
    without_case = f"{without_case['score']:.1f} without case"
    return f"BLEU {test['bleu']:.2f} ({without_case}) and chrF {test['chrf']:.2f},"


def test_other_text_is_as_scored():
    results = ROOT / "docs" / "results" / "multi30k-other-text"
    page = prose(PAGES / "small-text.md")

    before = validated(ROOT / "docs/results/multi30k-half-batches/half.history.jsonl")
    other, own = (validated(results / f"{name}.history.jsonl") for name in ("other", "own"))
    points = [before[12000], other[750], other[3000], own[700], own[4200]]
    told = [f"{point['validation_perplexity']:.2f}" for point in points]
    assert (
        f"was {told[0]} before, {told[1]} after 750 updates with the other text and {told[2]} "
        f"after 3,000 of them, {told[3]} after 700 with Multi30k alone and {told[4]} at the end"
    ) in page
    *greedy, last = (f"{point['validation_bleu']:.2f}" for point in points)
    assert f"greedy BLEU {', '.join(greedy)} and {last}." in page
    scores = read_json(results / "scores.json")
    assert [(s["split"], s["checkpoint"], s["step"]) for s in scores] == [
        ("valid", "last", 4200),
        ("valid", "average", 4200),
        ("valid", "best", 3500),
        ("test", "best", 3500),
    ]
    *valid, test = scores
    last, average, best = (f"{score['bleu']:.2f}" for score in valid)
    assert max(valid, key=lambda score: score["bleu"])["step"] == test["step"]
    assert f"it was {best} after 3,500, {last} at the end, and {average} for the average" in page
    (half,) = (
        s["bleu"]
        for s in read_json(ROOT / "docs/results/multi30k-half-batches/scores.json")
        if s["split"] == "test"
    )
    told = scored_on_the_test_set(results, test)
    assert f"{told} {test['bleu'] - half:.2f} BLEU above" in page


def test_other_text_for_longer_is_as_scored():
    results = ROOT / "docs" / "results" / "multi30k-other-text-longer"
    page = prose(PAGES / "small-text.md")
    other, own = (validated(results / f"{run}.history.jsonl") for run in ("other", "own"))
    points = [other[1000], other[6000], own[700], own[4200]]
    last_line = read(results / "other.history.jsonl").splitlines()[-1]
    assert f"for {json.loads(last_line)['step']:,} updates more," in page
    told = [f"{point['validation_perplexity']:.2f}" for point in points]
    assert (
        f"was {told[0]} after 1,000 updates and {told[1]} after 6,000, {told[2]} after 700 with "
        f"Multi30k alone and {told[3]} at the end"
    ) in page
    *greedy, end = (f"{point['validation_bleu']:.2f}" for point in points)
    assert f"greedy BLEU {', '.join(greedy)} and {end}." in page
    *valid, test = read_json(results / "scores.json")
    last, average, best = (f"{score['bleu']:.2f}" for score in valid)
    assert (
        f"it was {last} at the end, {average} for the average of the last five checkpoints, and "
        f"{best} after 3,500."
    ) in page
    best_valid = max(valid, key=lambda score: score["bleu"])
    assert best_valid["checkpoint"] == test["checkpoint"] == "average"
    told = scored_on_the_test_set(results, test)
    assert f"{told} still below 42.0" in page


def test_translations_as_text_in_french_are_as_scored():
    results = ROOT / "docs" / "results" / "multi30k-french-diversified"
    page = prose(PAGES / "small-text.md")
    first, backward, own = (
        validated(results / f"{run}.history.jsonl") for run in ("first", "backward", "own")
    )
    into = (f"{found[3600]['validation_bleu']:.2f}" for found in (first, backward))
    assert "was {} into French and {} into English in the end.".format(*into) in page
    greedy = (f"{own[step]['validation_bleu']:.2f}" for step in (800, 3200, 6400, 9600))
    assert (
        "it was {} after 800 updates, {} after 3,200, {} after 6,400 and {} at the end."
    ).format(*greedy) in page
    average, best, test = read_json(results / "scores.json")
    beam = {f"{score['bleu']:.2f}" for score in (average, best)}
    assert f"With beam 4 it was {beam.pop()} both for the best checkpoint and for" in page
    assert not beam
    assert test["checkpoint"] == average["checkpoint"] == "average"
    told = scored_on_the_test_set(results, test, "fr")
    (long,) = read_json(ROOT / "docs" / "results" / "multi30k-french" / "scores.json")
    assert f"{told} which is {long['bleu'] - test['bleu']:.2f} BLEU below the" in page


def test_translations_as_text_are_as_scored():
    results = ROOT / "docs" / "results" / "multi30k-diversified"
    page = prose(PAGES / "small-text.md")
    other, backward, own = (
        validated(results / f"{run}.history.jsonl") for run in ("other", "backward", "own")
    )
    assert f"was {backward[2900]['validation_bleu']:.2f} in the end. Both then" in page
    told = {
        name: [f"{other[step][f'validation_{name}']:.2f}" for step in (6000, 12000)]
        for name in ("perplexity", "bleu")
    }
    assert (
        "perplexity on the text for validation {} after 6,000 and {} at the end, greedy BLEU {} "
        "and {}."
    ).format(*told["perplexity"], *told["bleu"]) in page
    greedy = [f"{own[step]['validation_bleu']:.2f}" for step in (800, 1600, 2400, 3200)]
    assert (
        "was {} after 800 updates, {} after 1,600, {} after 2,400 and {} after 3,200, the best;"
    ).format(*greedy) in page
    assert max(own, key=lambda step: own[step]["validation_bleu"]) == 3200
    perplexities = [f"{own[step]['validation_perplexity']:.2f}" for step in (3200, 4000)]
    assert "perplexity {} there and {} after 4,000.".format(*perplexities) in page
    *valid, test = read_json(results / "scores.json")
    scores = {
        (score["checkpoint"], *score.get("averaged", ())): f"{score['bleu']:.2f}" for score in valid
    }
    last = [scores["average", *range(4800 - 400 * (count - 1), 4801, 400)] for count in (5, 6, 8)]
    within = [scores["average", *range(first, 6401 - first, 400)] for first in (2400, 2800)]
    assert (
        f"it was {scores['best',]} after 3,200, {scores['last',]} at the end, and {last[0]}, "
        f"{last[1]} and {last[2]} for the averages of the last five, six and eight checkpoints "
        f"({within[0]} and {within[1]} for those of 2,400 to 4,000 and 2,800 to 3,600,"
    ) in page
    assert test["averaged"] == [2800, 3200, 3600, 4000, 4400, 4800]
    assert float(last[1]) == max(map(float, (*last, scores["best",], scores["last",])))
    told = scored_on_the_test_set(results, test)
    assert f"{told} the best of all models here" in page
    assert f"reaches BLEU {test['bleu']:.2f} on test_2016_flickr" in prose(ROOT / "README.md")
    others = (ROOT / "docs" / "results").glob("multi30k-*/scores.json")
    scored = [s for path in others for s in read_json(path) if isinstance(s, dict)]
    german = [s for s in scored if s.get("split") == "test" and s["bleu"] < 60]
    assert max(s["bleu"] for s in german) == test["bleu"]
    compared = test["compared_with"]
    assert (
        f"Against the {compared['bleu']['baseline']:.2f} above p is "
        f"{compared['bleu']['p_value']:.3f} in BLEU and {compared['chrf']['p_value']:.3f} in chrF"
    ) in page
    by_length = [f"{found['bleu']:.1f}" for found in test["by_length"]]
    assert ("it is {} up to 9, {} for 10 and 11, {} for 12 to 14, and {} beyond.").format(
        *by_length
    ) in page


def test_accuracies_on_graphs():
    for file, row in (
        ("ewt", "`--relations graph`, the default"),
        ("ewt-additive", "the same with `--compatibility additive`"),
    ):
        result = read_json(ROOT / "docs" / "results" / "graphs" / f"{file}.json")
        assert f"| {row} | **{result['accuracy']:.3f}** |" in read(PAGES / "graphs.md")


def test_time_and_memory_of_additive_compatibility():
    results = read_json(BENCHMARKS / "compatibility.json")
    assert results["date"] in read(PAGES / "layers.md")
    steps = {(step["xla"], step["T"]): step for step in results["steps"]}
    for length, whole in results["one_tensor"].items():
        graph, xla = (steps[compiled, int(length)] for compiled in (False, True))
        memory = (graph["megabytes"][name] for name in ("product", "additive"))
        cells = [length, f"{graph['ratio']:.1f}", f"{xla['ratio']:.1f}"]
        cells += [f"{size:,.0f} MB" for size in (*memory, whole)]
        assert f"| {' | '.join(cells)} |" in read(PAGES / "layers.md")


def test_bleu_of_additive_compatibility():
    results = ROOT / "docs" / "results" / "compatibility"
    (additive,), (product,) = (
        read_json(results / f"demo-{name}.json") for name in ("additive", "product")
    )
    assert additive["step"] == product["step"] == 300
    told = f"test BLEU {additive['bleu']:.1f} and the product at {product['bleu']:.1f}"
    assert told in read(PAGES / "layers.md")


@pytest.mark.parametrize("name", ["text", "keras_hub", "series"])
def test_what_positions_reach_is_as_measured(name):
    path = ROOT / "docs" / "results" / "positions" / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    seeds = [sorted(r["seed"] for r in found["runs"] if r["position"] == p) for p in POSITIONS]
    assert len(seeds[0]) >= 2 and all(others == seeds[0] for others in seeds)
    assert positions_report.markdown(found) in read(PAGES / "known-code.md")


def test_what_dependencies_add_is_as_measured():
    found = json.loads((ROOT / "docs" / "results" / "syntax" / "demo.json").read_text("utf-8"))
    assert len({run["seed"] for run in found["runs"]}) >= 2
    assert syntax_report.markdown(found) in read(PAGES / "graphs.md")


def test_peers_on_graphs_are_as_measured():
    found = read_json(BENCHMARKS / "graph_peer.json")
    page = read(PAGES / "graphs.md")
    assert found["date"] in page
    for peer in found["contestants"]:
        cells = [f"`{peer['name']}`", f"{peer['accuracy']:.3f}", f"{peer['parameters']:,}"]
        cells += [f"{peer['steps_per_second']:.1f}", f"{1 / peer['seconds_over_ours']:.1f}"]
        assert f"| {' | '.join(cells)} |" in page


def test_forms_are_as_measured():
    """The page is a form, too, measured by a benchmark of its own: it translates one by one."""
    found = read_json(BENCHMARKS / "forms.json")
    of_page = read_json(BENCHMARKS / "web.json")
    table = forms.markdown(found["forms"], found["sentences"])
    for record in of_page["web"]:
        title = f"web page {record['quantization'].replace('none', 'float32')}"
        size, start = record["site_megabytes"], record["start_up_s"]
        speed = record["per_s"]["page"]
        table += f"| {title} | {size:.1f} | | {start:.1f} | {speed:.1f} | | | |\n"
    for page in (ROOT / "README.md", PAGES / "deployment.md"):
        assert table in read(page)
        assert found["date"] in read(page) and of_page["date"] in read(page)


def test_the_page_beside_python_is_as_measured():
    for file, run in (("web", "Multi30k, "), ("web_demo", "demo, ")):
        found = read_json(BENCHMARKS / f"{file}.json")
        for record in found["web"]:
            assert web.row(record, run) in read(PAGES / "deployment.md")


def speed(stem):
    return read_json(BENCHMARKS / f"{stem}.json")


def with_source(table, *stems):
    """A table of the page on speed, and what is told below it of the results it is made of."""
    files = {}
    for stem in stems:
        found = speed(stem)
        _, cores, *_ = found["device"].split(", ")
        files.setdefault(f"{found['date']}, {cores}", []).append(f"`{stem}.json`")
    told = "; ".join(f"{when}: {', '.join(names)}" for when, names in files.items())
    return f"{table.strip()}\n\n*{told}*\n"


def test_attention_is_as_measured():
    page = read(PAGES / "speed.md")
    shares = {}
    for stem in (
        "float32_amx",
        "float32_amx_k",
        "bfloat16_amx",
        "float32_avx512",
        "float32_avx512_k",
        "bfloat16_avx512",
        "float32_avx2",
        "float32_avx2_k",
    ):
        found = speed(f"attention_{stem}")
        assert found["settings"]["dtype"] == stem.partition("_")[0]
        assert with_source(attention.markdown(found), f"attention_{stem}") in page
        shares[stem] = f"{attention.share_of_best(found):.0%}"
    for told in (
        "with AVX-512 at {float32_avx512} in float32, at {float32_avx512_k} with other k and at "
        "{bfloat16_avx512} in bfloat16;",
        "with AMX at {float32_amx} in float32, at {float32_amx_k} with other k and at "
        "{bfloat16_amx} in bfloat16; with AVX2 at "
        "{float32_avx2} and at {float32_avx2_k} with other k.",
    ):
        assert told.format(**shares) in page.replace("\n", " ")


def test_the_papers_form_of_long_sequences_is_as_measured():
    told, left_out = [], set()
    for dtype in ("float32", "bfloat16"):
        records = speed(f"attention_{dtype}_avx512")["ratios"]
        long = [(r["T"], r["table"], r["over_plain"]) for r in records if r["T"] >= 1024]
        found = [over["transpose_reshape"] for *_, over in long if "transpose_reshape" in over]
        told.append(f"{min(found):.1f} to {max(found):.1f}")
        left_out |= {
            (dtype, r["xla"], r["table"], r["T"])
            for r in records
            if "transpose_reshape" not in r["over_plain"]
        }
    page = prose(PAGES / "speed.md")
    assert f"{told[0]} times plain attention's time in float32 and {told[1]} in bfloat16" in page
    assert left_out == {
        (dtype, xla, *place)
        for dtype in ("float32", "bfloat16")
        for xla in (False, True)
        for place in (("shared", 4096), ("per head", 2048), ("per head", 4096))
    }
    assert "with shared tables at 4,096, and per head from 2,048 on" in page


def test_speed_and_memory_are_as_measured():
    page = read(PAGES / "speed.md")
    for steps, memories in (
        (["base_float32", "big_float32"], ["base", "big"]),
        (
            ["base_float32_avx512", "base_mixed_bfloat16", "big_mixed_bfloat16"],
            ["base_avx512", "base_mixed_bfloat16", "big_mixed_bfloat16"],
        ),
        (["base_mixed_bfloat16_amx", "big_mixed_bfloat16_amx"],) * 2,
    ):
        stems = [f"training_step_{name}" for name in steps]
        of_memory = [f"training_memory_{name}" for name in memories]
        table = report.training_steps([*map(speed, stems)], [*map(speed, of_memory)])
        assert with_source(table, *stems, *of_memory) in page
    memory = speed("training_memory_big_avx512")["megabytes"]
    assert f"{memory['relative'] / memory['sinusoidal']:.3f}" in page
    (core,) = speed("attention_big_bfloat16_amx")["ratios"]
    auto, *others = (f"{ratio:.2f}" for ratio in core["over_plain"].values())
    told = f"its core takes {auto} times plain attention's there, and {min(others)} to"
    bounds = prose(PAGES / "bounds.md")
    assert told in bounds
    big, base = (
        speed(f"training_memory_{preset}_mixed_bfloat16_amx")["tensor_megabytes"]
        for preset in ("big", "base")
    )
    told = (
        f"take {big['sinusoidal']:,.0f} MB at most with sinusoids and {big['relative']:,.0f} with "
        f"relative positions, {big['relative'] / big['sinusoidal']:.3f} times as much, and those "
        f"of `base` {base['relative'] / base['sinusoidal']:.3f} times"
    )
    assert told in bounds
    for kind in ("", "_avx512", "_avx512_xeon", "_amx"):
        stems = {preset: f"opennmt_{preset}{kind}" for preset in ("tiny", "base")}
        table = report.trainings({preset: speed(stem) for preset, stem in stems.items()})
        assert with_source(table, *stems.values()) in page
    turns = [speed(f"opennmt_{preset}_avx512_xeon")["turns"] for preset in ("tiny", "base")]
    half, single = (
        [f"{median(turn['peak'][precision] for turn in of_run) / 1e9:.0f}" for of_run in turns]
        for precision in ("bfloat16", "float32")
    )
    assert f"({' and '.join(half)} GFLOP/s beside {' and '.join(single)}," in page
    models = {"`tiny`": "", "`tiny`, no oneDNN": "_without_onednn", "`base`": "_base"}
    for kind in ("", "_avx2"):
        stems = {name: f"decoding{kind}{stem}" for name, stem in models.items()}
        table = report.decoding({name: speed(stem) for name, stem in stems.items()})
        assert with_source(table, *stems.values()) in page
    assert with_source(report.callers(speed("callers")), "callers") in page
    assert with_source(report.memory(speed("memory")), "memory") in page


def test_a_gpu_is_as_measured():
    page = prose(PAGES / "speed.md")
    found = speed("gpu_attention")
    assert report.attention_on_gpu(found).replace("\n", " ") in page
    ratios = [record["over_plain"] for record in found["attention"]]
    assert all(ratio["keys"] < ratio["flex"] for ratio in ratios)
    longest = max(found["attention"], key=lambda record: record["T"])["megabytes"]
    assert f"{longest['keys']:,.0f} MB where FlexAttention holds {longest['flex']:.0f}" in page
    long = [x["auto"] / x["cudnn"] for x in ratios if x["cudnn"] < 0.5]
    assert (round(min(long)), round(max(long))) == (7, 11)
    (base,) = speed("gpu_training_step")["training"]
    size = base["megabytes"]
    told = (
        f"{round(base['tokens_per_second'], -3):,.0f} target tokens a second, "
        f"{base['share_of_peak']:.0%} of the operations a second of a product of 8192 x 8192 "
        "matrices, "
        f"{1 / base['over_sinusoidal']['relative']:.3f} of the updates per second with sinusoids, "
        f"and {size['relative'] / size['sinusoidal']:.3f} times their memory"
    )
    assert told in page
    before = {r["T"]: r["over_plain"] for r in speed("gpu_attention_before")["attention"]}
    base, big = (
        f"{1 / record['over_sinusoidal']['relative']:.3f}"
        for record in speed("gpu_training_step_before")["training"]
    )
    told = (
        f"{before[64]['auto']:.2f} times plain attention's time at 64 positions and "
        f"{before[2048]['auto']:.2f} at 2,048, the paper's form "
        f"{before[64]['transpose_reshape']:.1f} times at 64 and "
        f"{before[512]['transpose_reshape']:.0f} at 512, and updates were {base} of those with "
        f"sinusoids for `base` and {big} for `big`"
    )
    assert told in prose(PAGES / "bounds.md")


def test_decoding_in_bfloat16_is_as_measured():
    page = read(PAGES / "speed.md")
    stems = {"`tiny`": "decoding_amx", "`base`": "decoding_base_amx"}
    models = {name: speed(stem) for name, stem in stems.items()}
    assert with_source(report.decoding(models), *stems.values()) in page
    page = prose(PAGES / "speed.md")
    tiny, base = (model["decoding"][0] for model in models.values())  # by 32
    scores = {form: f"{score:.2f}" for form, score in base["bleu"].items()}
    others = {score for form, score in scores.items() if form != "saved_model_bfloat16"}
    assert f"{scores['saved_model_bfloat16']}, and {others.pop()} of all others" in page
    assert not others
    scores = [f"{tiny['bleu'][form]:.2f}" for form in ("saved_model_bfloat16", "saved_model")]
    assert " in place of ".join(scores) in page
    share = base["over_ctranslate2"]["saved_model_bfloat16"]
    told = f"in bfloat16 translates {share:.2f} times as many sentences a second as CTranslate2"
    assert told in prose(ROOT / "README.md")


def test_the_summary_of_speed_is_of_all_results():
    def between(numbers, digits="{:.2f}"):
        return " to ".join(digits.format(number) for number in (min(numbers), max(numbers)))

    kinds = ("amx", "amx_k", "avx512", "avx512_k", "avx2", "avx2_k")
    stems = ["bfloat16_amx", "bfloat16_avx512", *(f"float32_{kind}" for kind in kinds)]
    points = [record for stem in stems for record in speed(f"attention_{stem}")["ratios"]]
    layers = [
        between([r["over_keras"] for r in points if (r["T"] <= 64) == short])
        for short in (True, False)
    ]
    directory = ROOT / "pipelines" / "benchmark" / "results"
    steps = [read_json(path)["ratios"]["relative"] for path in directory.glob("training_step_*")]
    assert len(steps) == 8
    decoding = [read_json(path)["decoding"] for path in directory.glob("decoding*.json")]
    assert len(decoding) == 8
    by_32 = [found[0]["over_ctranslate2"]["saved_model"] for found in decoding]
    one_by_one = [found[1]["over_ctranslate2"]["tflite"] for found in decoding]
    summary = prose(PAGES / "speed.md").partition("Each table is of one run")[0]
    for told in (
        f"takes {layers[0]} of the time of Keras's up to 64 positions, and {layers[1]} beyond",
        f"keeps {between([100 / ratio for ratio in steps], '{:.0f}')}% of the updates a second",
        f"{between(by_32)} of CTranslate2's sentences a second in batches of 32",
        f"TFLite {between(one_by_one)} one by one",
    ):
        assert told in summary


@pytest.mark.parametrize("kind", ["", "_avx2"])
def test_decoding_is_as_measured(kind):
    _, _, told = read(ROOT / "README.md").partition("With one thread each")
    told = told.partition("\n\n")[0].split(" On a CPU with AVX2 alone ")[1 if kind else 0]
    found = speed(f"decoding{kind}")
    by_32, one_by_one = (record["over_ctranslate2"] for record in found["decoding"])
    _, without = speed(f"decoding{kind}_without_onednn")["decoding"]
    shares = [x["saved_model"] for x in (by_32, one_by_one, without["over_ctranslate2"])]
    assert all(f"{share:.2f}" in told for share in (*shares, one_by_one["tflite"]))
    assert found["date"] in told

"""What the documents show runs: Python as it stands, commands on a small task of the tests."""

import importlib.util
import re
import shlex
import shutil
import sys

import pytest

from tests.support.documents import DOCUMENTS, HOW_TO, PAGES, blocks, commands, name, read
from tests.support.exported_forms import write_run
from tests.support.layer_checks import run_python
from tests.support.runs import MODEL, ROOT, flags, run_command, run_process, write_corpus
from tests.support.serving_model import exported

pytestmark = pytest.mark.tensorflow_only

SMALL = flags(
    **MODEL,
    steps=4,
    warmup_steps=2,
    tokens_per_replica=256,
    valid_every=0,
    export_dir="none",
)


def flags_in_documents():
    """The flags that documents use, by module of the command line."""
    found = {}
    for path in DOCUMENTS:
        for module, rest in commands(read(path)):
            found.setdefault(module.rstrip("."), set()).update(re.findall(r"--[\w-]+", rest))
    return found


@pytest.mark.parametrize(("module", "used"), sorted(flags_in_documents().items()))
def test_commands_have_the_flags(module, used):
    result = run_command(module, ["--help"])
    assert result.returncode == 0
    assert used <= set(re.findall(r"--[\w-]+", result.stdout))


def test_all_of_them_are_found():
    """A change of the documents' layout must not empty the checks."""
    assert {"train_wmt", "prepare", "evaluate", "translate", "export"} <= set(flags_in_documents())
    assert {name(path) for path in HOW_TO if blocks(path, "python")} >= {
        f"docs/pages/{page}.md" for page in ("layers", "wmt14", "deployment", "files", "inside")
    }
    for path in HOW_TO:
        assert blocks(path, "python") or commands(read(path)), f"{name(path)} has no example"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A directory with the text that documents speak of, where their commands are run."""
    directory = write_corpus(tmp_path_factory.mktemp("workplace"))
    (directory / "news.en").write_text("a b c\nh g\n", encoding="utf-8")
    return directory


def run_shell(command, workplace):
    """Runs a line as documents show it, redirections included; `python` is this one."""
    command = command.replace("python -m", f"{shlex.quote(sys.executable)} -m")
    result = run_process(["sh", "-c", command], cwd=workplace)
    assert result.returncode == 0, f"{command}\n{result.stderr}"
    return result.stdout


def lines_with(path, start):
    """The commands of a page's shell blocks that begin so, continued lines joined."""
    text = "".join(blocks(path, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.startswith(start)]


def with_flags(command, more):
    """A command with more flags, which take the place of its own."""
    words = re.split(r" (?=--)", command)
    replaced = {word for word in more if word.startswith("--")}
    kept = [word for word in words if word.split()[0] not in replaced]
    return " ".join([*kept, shlex.join(more)])


def test_own_text(workplace):
    """Training, scoring and translating, as the page shows it but for the size of the model."""
    page = PAGES / "training.md"
    train, evaluate, translate = lines_with(page, "python -m pipelines.")[:3]
    assert [line.split()[2] for line in (train, evaluate, translate)] == [
        f"pipelines.{module}" for module in ("train_wmt", "evaluate", "translate")
    ]
    run_shell(with_flags(with_flags(train, SMALL), ["--valid_every", "2"]), workplace)
    assert run_shell(evaluate, workplace).startswith("BLEU ")
    run_shell(translate, workplace)
    assert len((workplace / "news.de").read_text(encoding="utf-8").splitlines()) == 2
    # What the page on files reads of it:
    (block,) = blocks(PAGES / "files.md", "python")
    assert "test" in run_python(block, workplace)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["several-machines.md", "wmt14.md"])
def test_rehearsals_on_the_demo(page, workplace):
    """The command on the demo corpus, on small text in its place."""
    command = lines_with(PAGES / page, "python -m pipelines.train_wmt")[-1]
    assert "--run_dir" in command
    text = {
        f"{split}_{side}": f"{split}.{language}"
        for split in ("train", "valid", "test")
        for side, language in (("source", "en"), ("target", "de"))
    }
    output = run_shell(with_flags(command, [*flags(**text), *SMALL]), workplace)
    assert "test BLEU" in output


@pytest.mark.slow  # ten processes; the forms have tests of their own
def test_exports(workplace):
    """Each form is made and read as the page shows it."""
    page = PAGES / "deployment.md"
    directory = workplace / "deployment"
    directory.mkdir()
    (directory / "news.en").write_text("the old dog\na house\n", encoding="utf-8")
    write_run(directory / "runs" / "mine")
    for command in lines_with(page, "python -m pipelines.export"):
        if "--format web" in command and shutil.which("node") is None:
            continue
        assert run_shell(command, directory).startswith("exported ")
    for command in lines_with(page, "python -m pipelines.translate"):
        if "://" not in command:
            output = run_shell(command, directory) or (directory / "news.de").read_text()
            assert output.count("\n") in (2, 8), command


def with_python():
    """The pages with Python; those that show what has tests of its own are slow."""
    slow = ("deployment.md", "graphs.md", "wmt14.md", "inside.md")
    for path in [ROOT / "README.md", *HOW_TO]:
        if blocks(path, "python"):
            marks = [pytest.mark.slow] if path.name in slow else []
            yield pytest.param(path, marks=marks, id=name(path))


@pytest.mark.parametrize("path", [*with_python()])
def test_python_runs(path, tmp_path):
    """The blocks of a page one after the other; the model stands for the one training leaves."""
    if path.name == "files.md":
        pytest.skip("run by test_own_text, on what it left")
    if path.name == "deployment.md":
        (tmp_path / "saved_models").mkdir()
        (tmp_path / "saved_models" / "demo").symlink_to(exported()[1].parent)
    run_python("\n".join(runnable(path)), tmp_path)


def runnable(path):
    """The blocks of a page, long sequences cut short.

    But for those that test_backends runs, and that need KerasHub where it is not installed.
    """
    left_out = ["fit.weights.h5"]
    if importlib.util.find_spec("keras_hub") is None:
        left_out.append("keras_hub")
    return [
        code.replace("16384", "1024")
        for code in blocks(path, "python")
        if not any(name in code for name in left_out)
    ]

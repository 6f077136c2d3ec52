"""The floor plan: imports go down only, and `tf_relpos` needs Keras and NumPy alone.

Read off the syntax trees, so that imports inside functions count as well.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

from pipelines.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[1]

# From the top down; what stands on one floor may use each other. `benchmark` measures all of it.
FLOORS = (
    {"benchmark", "__main__", "commands"},
    set(COMMANDS),
    {"reproduction", "generalization", "inspection", "graphs", "classification", "syntax"},
    {"training"},
    {"exporters"},
    {"translators"},
    {"run"},
    {"config", "data"},
    {"corpora", "files"},
    {"command_line", "config_file", "flag_parser", "importing", "progress"},
    {"flag_checks"},
    {"errors", "allocator", "interruption"},
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
PIPELINES = sorted((ROOT / "pipelines").rglob("*.py"))
TF_RELPOS = sorted((ROOT / "tf_relpos").rglob("*.py"))

# The modules of forms that start fast: what they import when they are imported.
START_FAST = ("base", "open", "tflite", "ctranslate2", "served", "rest")
SLOW = {"tensorflow", "tensorflow_text", "keras", "tf_relpos"}


def name_of(path):
    """pipelines/run/directory.py -> pipelines.run.directory"""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path, *, inside_functions=True):
    """The full names of the modules, and of what is taken from them, that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree) if inside_functions else tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name):
    """pipelines.run.directory -> run"""
    return name.split(".")[1]


def rooms_used(path):
    return {
        room_of(name) for name in imports(path) if name.startswith("pipelines.") and "." in name
    }


def ids(paths):
    return [name_of(path) for path in paths]


INSIDE = [path for path in PIPELINES if path.parent != ROOT / "pipelines" or path.stem in FLOOR_OF]


@pytest.mark.parametrize("path", INSIDE, ids=ids(INSIDE))
def test_imports_go_down_only(path):
    room = room_of(name_of(path))
    allowed = {other for other, floor in FLOOR_OF.items() if floor >= FLOOR_OF[room]}
    if room in COMMANDS:
        allowed -= set(COMMANDS) - {room}
    assert rooms_used(path) <= allowed


def test_every_module_stands_on_a_floor():
    assert {room_of(name_of(path)) for path in INSIDE} == set(FLOOR_OF)
    top = {path.stem for path in (ROOT / "pipelines").glob("*.py")} - {"__init__"}
    assert top <= set(FLOOR_OF)


def test_there_is_no_circle_of_modules():
    modules = {name_of(path) for path in PIPELINES}
    uses = {
        name_of(path): {
            module
            for name in imports(path)
            for module in (name, name.rpartition(".")[0])
            if module in modules and module != "pipelines"
        }
        for path in PIPELINES
    }
    while ends := {module for module, others in uses.items() if not others}:
        uses = {module: others - ends for module, others in uses.items() if module not in ends}
    assert not uses


@pytest.mark.parametrize("path", TF_RELPOS, ids=ids(TF_RELPOS))
def test_tf_relpos_imports_keras_and_numpy_alone(path):
    """TensorFlow where it is Keras's backend, for what Keras has no operation for."""
    allowed = {"keras", "numpy", "tf_relpos", *sys.stdlib_module_names}
    for inside_functions in (False, True):
        found = imports(path, inside_functions=inside_functions)
        assert {name.partition(".")[0] for name in found} <= allowed
        if path.stem in ("execution", "tensor_ops", "lean_layers", "fused_passes"):
            allowed.add("tensorflow")


def test_tf_relpos_is_flat_and_the_documents_know_each_module():
    assert {path.parent for path in TF_RELPOS} == {ROOT / "tf_relpos"}
    page = (ROOT / "docs" / "pages" / "inside.md").read_text(encoding="utf-8")
    table = page.partition("## From the paper to modules")[2].partition("```")[0]
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| (`.*?) \|", table))))
    assert told >= {path.stem for path in TF_RELPOS} - {"__init__"}


@pytest.mark.parametrize("path", [p for p in PIPELINES if p.stem == "__init__"], ids=name_of)
def test_rooms_have_empty_doors(path):
    """The house's own sets the environment up, and imports nothing slow."""
    if path.parent == ROOT / "pipelines":
        assert set(imports(path)) == {"os", "pipelines.importing.import_alone"}
    else:
        assert not path.read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("name", START_FAST)
def test_forms_that_start_fast_import_nothing_slow(name):
    path = ROOT / "pipelines" / "translators" / f"{name}.py"
    found = {
        name
        for name in imports(path, inside_functions=False)
        if name.partition(".")[0] in SLOW and not name.startswith("tf_relpos.config.")
    }
    assert not found


def unannotated(tree):
    """Names of public functions and methods that leave an argument or the result without a type.

    Keras's own methods keep Keras's signature, and nested functions are nobody's interface.
    """
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (f"{node.name}.{name}" for name in unannotated(node))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            typed = [a.annotation for a in arguments if a.arg not in ("self", "cls")]
            if node.returns is None or None in typed:
                yield node.name


KERAS_CALLBACKS = ("on_train_begin", "on_train_end", "on_train_batch_begin", "on_train_batch_end")


@pytest.mark.parametrize("path", PIPELINES + TF_RELPOS, ids=ids(PIPELINES + TF_RELPOS))
def test_public_functions_have_types(path):
    found = list(unannotated(ast.parse(path.read_text(encoding="utf-8"))))
    assert not [name for name in found if name.rpartition(".")[2] not in KERAS_CALLBACKS]

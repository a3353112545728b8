import ast
from pathlib import Path

import pytest

from specpack.seams import source
from specpack.seams.source import defines, find_function, find_value, tree_at

MODULE = '''"""Docstring with a line that looks like code:
def twice():
"""
from elsewhere import (
    one,
    two as three,
)
import package.part as part

LIMIT: int = 4
LIMIT = [
    1,
]

def twice():
    return 1


@first
@second(
    argument=1,
)
def twice(
    a,
):
    text = """
not a block's end
"""
# a comment at the margin
    return text


class Model:
    table = {"a": 1}

    def run(self):
        return "first"

    @property
    def run(self):
        def run():
            return 0

        return "second"

    def run_longer(self):
        return 3


def run():
    return "module"
'''


@pytest.fixture(autouse=True)
def without_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_find_by_parsing", lambda text, qualname: None)


@pytest.mark.parametrize("qualname", ["twice", "Model.run", "Model.run_longer", "run"])
def test_finds_the_node_that_parsing_the_module_finds(qualname: str) -> None:
    node = ast.parse(MODULE)
    for name in qualname.split("."):
        node = [n for n in node.body if getattr(n, "name", None) == name][-1]
    assert ast.dump(find_function(MODULE, qualname)) == ast.dump(node)


def test_takes_the_last_of_two_definitions_with_its_decorators() -> None:
    assert len(find_function(MODULE, "twice").decorator_list) == 2
    assert len(find_function(MODULE, "Model.run").decorator_list) == 1


def test_finds_a_function_on_the_first_line() -> None:
    assert find_function("def f(): return 1\n", "f").name == "f"


@pytest.mark.parametrize("qualname", ["three_times", "Model.twice", "Other.run"])
def test_finds_nothing_where_there_is_nothing(qualname: str) -> None:
    assert find_function(MODULE, qualname) is None


def test_parses_the_module_where_indentation_misleads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    text = "class A:\n  def f(self):\n    return 1\n"
    assert find_function(text, "A.f").name == "f"


@pytest.mark.parametrize(
    "qualname, value",
    [("LIMIT", "[1]"), ("Model.table", "{'a': 1}")],
)
def test_finds_the_last_value_assigned(qualname: str, value: str) -> None:
    assert ast.unparse(find_value(MODULE, qualname)) == value


@pytest.mark.parametrize(
    "qualname", ["one", "three", "part", "LIMIT", "twice", "Model.table", "Model.run"]
)
def test_knows_the_names_a_scope_binds(qualname: str) -> None:
    assert defines(MODULE, qualname)


@pytest.mark.parametrize("qualname", ["four", "table", "Model.twice", "text", "No.x"])
def test_knows_the_names_a_scope_does_not_bind(qualname: str) -> None:
    assert not defines(MODULE, qualname)


@pytest.mark.parametrize("layout", ["sglang", "python/sglang"])
def test_reads_the_version_of_a_tree(tmp_path: Path, layout: str) -> None:
    root = tmp_path / layout
    (root / "srt").mkdir(parents=True)
    (root / "srt" / "thing.py").write_text("x = 1\n")
    (root / "_version.py").write_text("__version__ = version = '1.2.3'\n")
    tree = tree_at(tmp_path)
    assert (tree.root, tree.version) == (root, "1.2.3")
    assert tree.text("sglang.srt.thing") == "x = 1\n"
    assert tree.text("sglang.srt.other") is None


def test_a_folder_without_sglang_is_no_tree(tmp_path: Path) -> None:
    assert tree_at(tmp_path) is None

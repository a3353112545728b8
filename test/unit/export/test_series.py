"""The whole series on the sources of the installed SGLang."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import black
import isort
import pytest

from specpack.export.plan import TESTS, Plan, make_plan
from specpack.seams.kinds import Addition, Patch
from specpack.seams.source import installed
from specpack.series import SERIES

TREE = installed()
# Environment variables that the exported tree reads under the same name.
SETTINGS = ("SPECPACK_LOAD_AUDIT",)
pytestmark = pytest.mark.skipif(TREE is None, reason="needs SGLang's source")


def no_probe(patch: Patch) -> tuple[bool, str]:
    raise AssertionError(f"{patch.name} has drifted")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(SERIES, SERIES, TREE, "python", lambda path: None, no_probe)


@pytest.fixture(scope="module")
def modules(plan: Plan) -> dict[str, str]:
    """The final text of each module that the series changes."""
    files = {path: text for c in plan.commits for path, text in c.files.items()}
    return {
        path.removeprefix("python/").removesuffix(".py").replace("/", "."): text
        for path, text in files.items()
        if path.startswith("python/")
    }


def functions(text: str) -> Iterator[tuple[str, str]]:
    """Each function's dotted name and its lines, those of the same name numbered."""
    lines = text.split("\n")

    def walk(node: ast.AST, scope: str) -> Iterator[tuple[str, str]]:
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", None)
            path = f"{scope}.{name}".strip(".") if isinstance(name, str) else scope
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, "\n".join(lines[child.lineno - 1 : child.end_lineno])
            yield from walk(child, path)

    return walk(ast.parse(text), "")


def changed_lines(before: str, after: str) -> list[tuple[int, int]]:
    matcher = difflib.SequenceMatcher(
        None, before.splitlines(), after.splitlines(), False
    )
    return [
        (start + 1, stop)
        for tag, _, _, start, stop in matcher.get_opcodes()
        if tag in ("insert", "replace")
    ]


def names_specpack(text: str) -> bool:
    for setting in SETTINGS:
        text = text.replace(setting, "")
    return "specpack" in text.lower()


def test_every_patch_is_a_commit_that_changes_something(plan: Plan) -> None:
    assert [commit.patch for commit in plan.commits] == list(SERIES)
    assert all(commit.files for commit in plan.commits) and not plan.notes


def test_every_subject_is_short_and_its_own(plan: Plan) -> None:
    subjects = [commit.message.splitlines()[0] for commit in plan.commits]
    assert len(set(subjects)) == len(subjects)
    assert all(len(s) <= 80 and s.startswith("[Spec] ") for s in subjects)
    assert all(patch.title and patch.cost for patch in SERIES)


def test_every_registered_test_travels(plan: Plan) -> None:
    there = {f.relative_to(TESTS).as_posix() for f in TESTS.rglob("*.py")}
    travel = {path for patch in SERIES for path in patch.tests}
    assert there == travel


def test_nothing_exported_knows_of_specpack(plan: Plan) -> None:
    for commit in plan.commits:
        assert not names_specpack(commit.message)
        for path, text in commit.files.items():
            assert not names_specpack(text), path


def test_every_other_function_is_byte_for_byte(modules: dict[str, str]) -> None:
    for module, text in modules.items():
        seams = [s for p in SERIES for s in p.seams if s.module == module]
        ours = {seam.qualname for seam in seams}
        new = {seam.qualname for seam in seams if isinstance(seam, Addition)}
        stock = TREE.text(module)
        if stock is None:
            continue
        before = [pair for pair in functions(stock) if pair[0] not in ours]
        after = [pair for pair in functions(text) if pair[0] not in ours]
        assert before == after
        assert new <= dict(functions(text)).keys()


def test_changed_lines_are_as_black_writes_them(modules: dict[str, str]) -> None:
    for module, text in modules.items():
        lines = changed_lines(TREE.text(module) or "", text)
        mode = black.Mode(target_versions={black.TargetVersion.PY310})
        assert black.format_str(text, mode=mode, lines=lines) == text, module


def test_imports_are_as_isort_sorts_them(plan: Plan) -> None:
    for commit in plan.commits:
        for path, text in commit.files.items():
            sorted_text = isort.code(
                text, profile="black", known_first_party=["sglang"]
            )
            assert sorted_text == text, path


def test_ruff_has_nothing_to_say_about_any_commit(plan: Plan, tmp_path: Path) -> None:
    for number, commit in enumerate(plan.commits):
        for path, text in commit.files.items():
            (tmp_path / f"{number}-{Path(path).name}").write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    check = [*ruff, "check", "--isolated", "--select", "F401,F821,UP037", tmp_path]
    layout = [*ruff, "format", "--isolated", "--check", tmp_path]
    for command in (check, layout):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_no_new_import_closes_a_circle(modules: dict[str, str]) -> None:
    """Only the two heads of the circle import each other, inside functions."""
    text = modules["sglang.srt.layers.logits_processor"]
    header = text[: text.index("\nclass ")]
    assert "spec_utils" not in header
    assert text.count("from sglang.srt.speculative.spec_utils import") == 2

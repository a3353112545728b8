"""The table of patches: what it promises about itself and about SGLang 0.5.23."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from specpack.seams import Around, Guard, Seam
from specpack.seams.kinds import FunctionSeam
from specpack.seams.source import installed
from specpack.seams.verify import problems_of
from specpack.series import SERIES

SEAMS = [seam for patch in SERIES for seam in patch.seams]
BODIES = [(seam, body) for seam in SEAMS for body in vars(seam).values()]
BODIES = [(seam, body) for seam, body in BODIES if inspect.isfunction(body)]

PROBES = """
from specpack.seams import apply
from specpack.series import SERIES
before = [patch.name for patch in SERIES if patch.probe()]
apply(SERIES)
after = [patch.name for patch in SERIES if not patch.probe()]
print("already right:", before, "still wrong:", after)
"""


def body_node(body: object) -> ast.FunctionDef:
    return ast.parse(textwrap.dedent(inspect.getsource(body))).body[0]


def names_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            yield getattr(part, "module", None) or part.names[0].name


def label(value: object) -> str:
    return value.target if isinstance(value, Seam) else getattr(value, "__name__", "")


def test_names_are_unique_and_requirements_come_first() -> None:
    seen: set[str] = set()
    for patch in SERIES:
        assert patch.name not in seen
        assert seen.issuperset(patch.requires)
        seen.add(patch.name)


def test_every_patch_says_what_it_mends_and_when_it_can_go() -> None:
    for patch in SERIES:
        assert patch.symptom.endswith(".") and patch.removal and patch.seams
        assert patch.upstream.startswith("#")


@pytest.mark.parametrize("seam", SEAMS, ids=label)
def test_every_seam_fits_the_installed_sglang(seam: Seam) -> None:
    tree = installed()
    assert tree is not None and tree.version == "0.5.23"
    assert problems_of(seam, tree) == []
    if isinstance(seam, FunctionSeam):
        assert tree.version in seam.fingerprints


@pytest.mark.parametrize(("seam", "body"), BODIES, ids=label)
def test_bodies_stand_without_specpack(seam: Seam, body: object) -> None:
    assert not [name for name in names_in(body_node(body)) if "specpack" in name]


@pytest.mark.parametrize("seam", [s for s in SEAMS if isinstance(s, Guard)], ids=label)
def test_guards_continue_in_their_last_line_only(seam: Guard) -> None:
    node = body_node(seam.function)
    assert ast.unparse(node.body[-1]) == "return CONTINUE"
    assert list(names_in(node)).count("CONTINUE") == 1


@pytest.mark.parametrize(
    "seam", [s for s in SEAMS if isinstance(s, Around) and s.before], ids=label
)
def test_arounds_return_the_arguments_they_replace(seam: Around) -> None:
    last = body_node(seam.before).body[-1]
    assert isinstance(last, ast.Return) and isinstance(last.value, ast.Dict)


def test_importing_the_series_imports_neither_sglang_nor_torch() -> None:
    code = "import sys, specpack.series; print({'torch', 'sglang'} & set(sys.modules))"
    assert run(code) == "set()"


@pytest.mark.slow
def test_probes_see_each_fault_and_its_fix() -> None:
    assert run(PROBES) == "already right: [] still wrong: []"


def run(code: str) -> str:
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1]

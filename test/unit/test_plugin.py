"""The series and its entry point against the installed SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from specpack.seams.kinds import FunctionSeam
from specpack.seams.source import Tree, find_function, installed, tree_at
from specpack.seams.verify import parameter_difference, verify
from specpack.series import SERIES

TREE = installed()
needs_sglang = pytest.mark.skipif(TREE is None, reason="needs SGLang's source")
FUNCTION_SEAMS = [
    seam for patch in SERIES for seam in patch.seams if isinstance(seam, FunctionSeam)
]
LOGITS_PROCESSOR = Path("srt/layers/logits_processor.py")
GATE = "sglang.srt.layers.logits_processor:should_apply_lm_head_quant_method"


def never(patch: object) -> tuple[bool, str]:
    raise AssertionError(f"the probe of {patch} ran")


def altered_copy(folder: Path, file: Path, old: str, new: str) -> Tree:
    """A tree of links to the installed SGLang in which one file differs."""
    copy = folder / "sglang"
    for part in [Path(), *reversed(file.parents[:-1])]:
        (copy / part).mkdir()
        for entry in (TREE.root / part).iterdir():
            if entry.name != "__pycache__" and (part / entry.name) not in file.parents:
                (copy / part / entry.name).symlink_to(entry)
    text = (TREE.root / file).read_text()
    assert old in text
    (copy / file).unlink()
    (copy / file).write_text(text.replace(old, new))
    return tree_at(folder)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_sglang_finds_the_entry_point() -> None:
    (entry,) = entry_points(group="sglang.srt.plugins", name="specpack")
    assert entry.value == "specpack.plugin:register"


def test_names_are_unique() -> None:
    names = [patch.name for patch in SERIES]
    assert len(set(names)) == len(names)


@needs_sglang
def test_every_seam_fits_the_installed_release_without_a_probe() -> None:
    verdicts = verify(SERIES, TREE, never)
    assert {verdict.state for verdict in verdicts} == {"applies"}


@needs_sglang
@pytest.mark.parametrize("seam", FUNCTION_SEAMS, ids=lambda seam: seam.target)
def test_our_functions_take_the_parameters_of_their_target(seam: FunctionSeam) -> None:
    node = find_function(TREE.text(seam.module), seam.qualname)
    assert parameter_difference(seam, node) is None


@needs_sglang
def test_register_imports_neither_sglang_nor_torch() -> None:
    done = python(
        "import sys; from specpack.plugin import register; register()\n"
        "print([name for name in ('sglang', 'torch') if name in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


@needs_sglang
def test_register_is_cheap() -> None:
    done = python(
        # What every SGLang process has imported by then.
        "import asyncio, importlib.metadata, inspect, logging, ssl, time\n"
        "start = time.process_time()\n"
        "from specpack.plugin import register; register()\n"
        "print(time.process_time() - start)"
    )
    # 30 ms with byte code cached, 45 without; the aim is 50, test machines are busy.
    assert float(done.stdout) < 0.2, done.stderr


def test_a_plugin_that_cannot_be_imported_stops_the_process() -> None:
    done = python(
        "import sys; sys.modules['wrapt'] = None\n"
        "from specpack.plugin import register\n"
        "try: register()\n"
        "except Exception: pass"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("specpack cannot be loaded: ModuleNotFoundError")


@needs_sglang
def test_an_altered_copy_names_the_seam(tmp_path: Path) -> None:
    gate = 'quant_method is None\n        or not hasattr(lm_head, "weight")'
    tree = altered_copy(tmp_path, LOGITS_PROCESSOR, gate, "quant_method is None")
    verdicts = verify(SERIES, tree, lambda patch: (False, ""))
    drifted = [str(p) for v in verdicts if v.state == "drifted" for p in v.problems]
    assert len(drifted) == 1 and drifted[0].startswith(f"{GATE} has changed")


@needs_sglang
@pytest.mark.slow
def test_sglang_does_not_go_on_with_a_drifted_tree(tmp_path: Path) -> None:
    name = "def should_apply_lm_head_quant_method"
    altered_copy(tmp_path, LOGITS_PROCESSOR, name, name + "_renamed")
    done = python(
        "from sglang.srt.plugins import load_plugins\n"
        "import sys, sglang; print(sglang.__file__)\n"
        "try: load_plugins()\n"
        "finally: print('eagle' in str(sys.modules.keys()), sys.meta_path[0])\n"
        "print('went on')",
        PYTHONPATH=str(tmp_path),
        SGLANG_PLUGINS="specpack",
        SPECPACK_ON_DRIFT="",
    )
    assert done.returncode == 1
    assert str(tmp_path) in done.stdout
    assert "went on" not in done.stdout and "ImportHookFinder" not in done.stdout
    paragraph = done.stderr.splitlines()[-1]
    assert paragraph.startswith("specpack does not fit SGLang 0.5.23")
    assert f"{GATE} does not exist in this release" in paragraph
    assert "Traceback" not in done.stderr

"""`specpack status`, on small trees and on the installed SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpack import cli, status
from specpack.seams import CONTINUE, Guard, Patch, fingerprint
from specpack.seams.source import installed


def ours(x: int) -> Any:
    return CONTINUE


STOCK = "def broken(x):\n    return x - 1\n"
SERIES = (
    Patch(
        name="one",
        symptom="Off by two.",
        upstream="#1",
        removal="when it adds",
        probe=lambda: False,
        seams=(
            Guard(
                target="sglang.srt.model:broken",
                function=ours,
                fingerprints={"0.0.1": fingerprint(STOCK)},
            ),
        ),
    ),
)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs `specpack status` on a tree with the given module, and gives its output."""
    monkeypatch.setattr(status, "SERIES", SERIES)

    def run(source: str, *options: str, fixed: bool = False) -> tuple[int, str]:
        folder = tmp_path / "sglang" / "srt"
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(source)
        (folder.parent / "_version.py").write_text("__version__ = '0.0.2'\n")
        outcomes = {"one": (fixed, "")}
        monkeypatch.setattr(status, "probe_apart", lambda names, tree: outcomes)
        code = cli.main(["status", "--root", str(tmp_path), *options])
        return code, capsys.readouterr().out

    return run


def test_says_that_a_patch_applies(run: Any) -> None:
    code, out = run(STOCK)
    assert code == 0
    assert out.startswith("SGLang 0.0.2 at ") and out.endswith("one  applies\n")


def test_says_which_seam_has_drifted(run: Any) -> None:
    code, out = run("def broken(x):\n    return x - 2\n")
    assert code == 1
    assert "one  drifted: sglang.srt.model:broken has changed" in out


def test_says_that_a_patch_is_not_needed(run: Any) -> None:
    code, out = run("def broken(x):\n    return x + 1\n", fixed=True)
    assert code == 0
    assert "one  not needed: sglang.srt.model:broken has changed" in out


def test_prints_the_same_as_json(run: Any) -> None:
    code, out = run("def broken(x):\n    return x - 2\n", "--json")
    report = json.loads(out)
    (patch,) = report["patches"]
    (seam,) = patch["seams"]
    assert (code, report["sglang"]) == (1, "0.0.2")
    assert (patch["name"], patch["state"]) == ("one", "drifted")
    assert (seam["target"], seam["kind"]) == ("sglang.srt.model:broken", "guard")
    assert seam["problem"].startswith("has changed")


def test_says_in_one_line_that_sglang_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "installed", lambda: None)
    assert cli.main(["status"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_says_in_one_line_that_a_folder_has_no_sglang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", "--root", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(
    "body, expected",
    [
        ("return value", (True, "")),
        ("return not value", (False, "")),
        ("raise KeyError('x')", (False, "its probe failed with KeyError: 'x'")),
        ("raise SystemExit('no')", (False, "its probe failed with no")),
    ],
)
def test_a_probe_runs_apart_on_the_tree_it_judges(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    expected: tuple[bool, str],
) -> None:
    (tmp_path / "sglang" / "srt").mkdir(parents=True)
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "srt" / "only_here.py").write_text("value = True\n")
    (tmp_path / "specpack_probe_site").mkdir()
    (tmp_path / "specpack_probe_site" / "sitecustomize.py").write_text(
        "import specpack.series\n"
        "from specpack.seams import Patch\n"
        "def probe():\n"
        "    from sglang.srt.only_here import value\n"
        f"    {body}\n"
        "specpack.series.SERIES = (Patch(name='one', symptom='', upstream='',\n"
        "    removal='', probe=probe),)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "specpack_probe_site"))
    tree = status.tree_at(tmp_path)
    assert status.probe_apart(["one"], tree) == {"one": expected}


@pytest.mark.skipif(installed() is None, reason="needs SGLang's source")
def test_the_installed_sglang_is_judged_without_torch() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from specpack.cli import main; code = main(['status'])\n"
            "assert not {'torch', 'sglang'} & set(sys.modules); sys.exit(code)",
        ],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"SGLang {installed().version} at ")


def test_a_reader_that_has_enough_gets_no_traceback() -> None:
    command = f"{sys.executable} -m specpack status | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert ended.stderr == ""
    assert ended.stdout.strip() in ("0", "141")

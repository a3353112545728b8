"""A new module as a file of the tree."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specpack import cli, status
from specpack.export import command, fork
from specpack.export.edits import write
from specpack.export.sources import Refusal, Sources
from specpack.seams import CONTINUE, Guard, NewModule, Patch
from specpack.series import SERIES

from .conftest import make_patch
from .test_command import state

AUDIT = '''"""Compare what was loaded.

More of it.
"""

import os

import torch
from sglang.srt.base import Base


def problems(head):
    return [os, torch, Base, head]
'''
FILE = "python/sglang/srt/audit.py"


def audited_gate(head: Any) -> Any:
    """Look first."""
    from sglang.srt.audit import problems

    if problems(head):
        return True
    return CONTINUE


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Our file, module `exported_files.audit`."""
    package = tmp_path / "exported_files"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "audit.py").write_text(AUDIT)
    monkeypatch.syspath_prepend(tmp_path)
    yield package / "audit.py"
    sys.modules.pop("exported_files", None)


@pytest.fixture
def patch(library: Any, ours: Path) -> Patch:
    guard = Guard(
        target="sglang.srt.heads:gate",
        function=audited_gate,
        fingerprints=library.prints("gate"),
    )
    source = "exported_files.audit"
    return make_patch(
        "audit", guard, NewModule(target="sglang.srt.audit", source=source)
    )


@pytest.fixture
def export(
    library: Any,
    patch: Patch,
    use: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    use(patch)
    library.commit()

    def export(*options: str) -> tuple[int, str]:
        code = cli.main(["export", str(library.top), *options])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return export


def test_the_file_is_there_in_sglangs_import_order(library: Any, export: Any) -> None:
    assert export()[0] == 0
    text = (library.top / FILE).read_text()
    assert text == AUDIT.replace("import torch\n", "import torch\n\n")
    changed = library.git("diff", "--name-status", "main", "specpack").split("\n")
    assert changed == [f"A\t{FILE}", "M\tpython/sglang/srt/heads.py"]
    assert library.git("status", "--porcelain") == ""


def test_the_commit_says_what_is_new(library: Any, export: Any) -> None:
    export()
    body = library.git("log", "-1", "--format=%b", "specpack")
    assert "- `sglang.srt.audit`, new: Compare what was loaded.\n" in body
    assert "takes its present path" in body


def test_verify_sees_the_file(library: Any, export: Any) -> None:
    export()
    assert export("--verify")[0] == 0
    library.write("srt.audit", AUDIT)
    library.git("commit", "--quiet", "--all", "--amend", "--no-edit")
    code, out = export("--verify")
    assert code == 1 and f"audit: {FILE} differs" in out


def test_twice_gives_the_same(library: Any, export: Any) -> None:
    export()
    before = state(library)
    assert export() == (0, "specpack has these 1 commits already\n")
    assert state(library) == before


def test_a_module_that_is_there_is_shown(library: Any, export: Any) -> None:
    library.write("srt.audit", "theirs = 1\n")
    library.git("add", "--all")
    library.git("commit", "--quiet", "-m", "upstream")
    before = state(library)
    code, out = export()
    assert code == 1 and state(library) == before
    assert "sglang.srt.audit exists already in this release" in out
    assert "    theirs = 1\n" in out


@pytest.mark.parametrize("fetched", [False, True])
def test_a_file_git_does_not_know_stays(
    library: Any, export: Any, fetched: bool
) -> None:
    if fetched:
        # The series stands on a commit below HEAD.
        library.git("commit", "--quiet", "--allow-empty", "-m", "[Spec] Mend audit")
    library.write("srt.audit", "theirs = 1\n")
    before = state(library)
    code, out = export()
    assert code == 1 and state(library) == before


def test_an_import_that_would_close_a_circle_stays_inside(
    library: Any, patch: Patch, ours: Path
) -> None:
    ours.write_text(AUDIT.replace("srt.base import Base", "srt.heads import Base"))
    sources = Sources(library.tree)
    write(patch, sources)
    expected = "def gate(head):\n    from sglang.srt.audit import problems\n"
    assert expected in sources.read("sglang.srt.heads")


@pytest.mark.parametrize(
    "line", ["import specpack.series", "def f():\n    from specpack import status"]
)
def test_a_file_that_refers_to_specpack_is_refused(
    library: Any, patch: Patch, ours: Path, line: str
) -> None:
    ours.write_text(f"{AUDIT}\n\n{line}\n")
    with pytest.raises(Refusal, match="sglang.srt.audit: .* comes from specpack"):
        write(patch, Sources(library.tree))


def test_status_shows_it_on_a_wheel(
    library: Any,
    patch: Patch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(status, "SERIES", (patch,))
    outcomes = {"audit": (False, "")}
    monkeypatch.setattr(status, "probe_apart", lambda names, tree: outcomes)
    wheel = ["status", "--against", str(make_wheel(library, tmp_path))]
    assert cli.main(wheel) == 0
    library.write("srt.audit", "theirs = 1\n")
    make_wheel(library, tmp_path)
    capsys.readouterr()
    assert cli.main(wheel) == 1
    out = capsys.readouterr().out
    assert "audit  drifted: sglang.srt.audit exists already in this release" in out
    assert "    theirs = 1\n" in out
    assert cli.main([*wheel, "--json"]) == 1
    assert '"kind": "new module"' in capsys.readouterr().out


def test_the_forks_wheel_has_the_file(
    library: Any,
    patch: Patch,
    use: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(patch)
    for name in fork.IDENTITY:
        monkeypatch.setenv(name, "")
    wheel = make_wheel(library, tmp_path)
    monkeypatch.setattr("sys.argv", ["fork", str(wheel), str(tmp_path / "fork")])
    assert fork.main() == 0
    with zipfile.ZipFile(tmp_path / "sglang-0.0.1+specpack-py3-none-any.whl") as made:
        assert b"def problems" in made.read("sglang/srt/audit.py")
        record = made.read("sglang-0.0.1+specpack.dist-info/RECORD").decode()
        assert record.count("sglang/srt/audit.py,sha256=") == 1
        assert len(made.namelist()) == len(record.splitlines())


def make_wheel(library: Any, folder: Path) -> Path:
    made = folder / "sglang-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for file in sorted(library.root.rglob("*.py")):
            archive.write(file, file.relative_to(library.root.parent))
        info = "sglang-0.0.1.dist-info"
        archive.writestr(f"{info}/METADATA", "Name: sglang\nVersion: 0.0.1\n")
        archive.writestr(f"{info}/RECORD", "")
    return made


def test_every_file_of_the_series_is_a_seams() -> None:
    folder = Path(command.__file__).parents[1] / "series" / "files"
    files = {
        ".".join(("specpack.series.files", *file.relative_to(folder).parts))
        for file in folder.rglob("*.py")
        if file.name != "__init__.py"
    }
    seams = [s for patch in SERIES for s in patch.seams if isinstance(s, NewModule)]
    assert files == {f"{seam.source}.py" for seam in seams}
    for seam in seams:
        mirrored = seam.target.replace("sglang.srt", "specpack.series.files", 1)
        assert seam.source == mirrored

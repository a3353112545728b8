"""The table of patch by release, from wheels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from specpack.export import table
from specpack.seams import Attribute, Replace

from .conftest import make_patch


def test_a_word_for_each_patch_and_release(
    library: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def drifted(name: str) -> Replace:
        target = f"sglang.srt.heads:{name}"
        return Replace(target=target, function=drifted, fingerprints={})

    new = Attribute(target="sglang.srt.heads:Model.names", value=[])
    outcomes = {
        "mended": (True, ""),
        "broken": (False, ""),
        "unknown": (False, "its probe failed with KeyError"),
    }
    series = (
        make_patch("new", new),
        *(make_patch(name, drifted("gate")) for name in outcomes),
        make_patch("later", new, requires=("broken",)),
    )
    monkeypatch.setattr(table, "SERIES", series)
    probe = lambda patches, tree: lambda patch: outcomes[patch.name]  # noqa: E731
    monkeypatch.setattr(table, "together", probe)
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in library.root.rglob("*.py"):
            archive.write(file, file.relative_to(library.root.parent))
    assert table.main([str(wheel)]) == 0
    assert capsys.readouterr().out == """\
| patch | 0.0.1 |
| --- | --- |
| new | applies |
| mended | already there |
| broken | drifted |
| unknown | drifted, not probed |
| later | waits |
"""


def test_a_file_without_sglang_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no SGLang in"):
        table.column(tmp_path)

"""`make fork` on a small wheel: the release, the series on top, a wheel of that."""

from __future__ import annotations

import base64
import csv
import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from specpack.export import fork
from specpack.seams import Attribute

from .conftest import make_patch

NAME = "sglang-0.0.1-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.0.1\nRequires: 0.0.1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def wheel(library: Any, tmp_path: Path) -> Path:
    """A wheel of the small library, with a compiled file that git would ignore."""
    (library.root / "fast.so").write_bytes(b"\x00\xff")
    (library.root / "E=1,N=[2, 3].json").write_text("{}")
    (library.root / ".gitignore").write_text("*.so\n")
    made = tmp_path / NAME
    with zipfile.ZipFile(made, "w") as archive:
        for file in sorted(library.root.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(library.root.parent))
        archive.writestr("sglang-0.0.1.dist-info/METADATA", METADATA)
        archive.writestr("sglang-0.0.1.dist-info/WHEEL", WHEEL)
        archive.writestr("sglang-0.0.1.dist-info/RECORD", "")
    return made


@pytest.fixture
def make(wheel: Path, tmp_path: Path, use: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs `make fork` into a folder; gives the ids of its commits."""
    use(make_patch("names", Attribute(target="sglang.srt.heads:Model.names", value=[])))
    for name in fork.IDENTITY:
        monkeypatch.setenv(name, "")

    def make(folder: str) -> list[str]:
        monkeypatch.setattr("sys.argv", ["fork", str(wheel), str(tmp_path / folder)])
        assert fork.main() == 0
        log = ["git", "-C", tmp_path / folder, "log", "--format=%H"]
        return subprocess.check_output(log, text=True).split()

    return make


def test_the_same_wheel_gives_the_same_commits(make: Any) -> None:
    first = make("one")
    assert len(first) == 2
    assert first == make("one") == make("two")


def test_the_first_commit_is_the_release_as_it_is(make: Any, tmp_path: Path) -> None:
    first = make("one")[-1]
    show = ["git", "-C", tmp_path / "one", "show", f"{first}:python/sglang/fast.so"]
    assert subprocess.check_output(show) == b"\x00\xff"


def test_the_wheel_is_the_release_with_the_series(make: Any, tmp_path: Path) -> None:
    make("one")
    made = tmp_path / "sglang-0.0.1+specpack-py3-none-any.whl"
    with zipfile.ZipFile(made) as archive:
        assert b"names = []" in archive.read("sglang/srt/heads.py")
        assert archive.read("sglang/fast.so") == b"\x00\xff"
        info = "sglang-0.0.1+specpack.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode()
        assert "\nVersion: 0.0.1+specpack\nRequires: 0.0.1\n" in metadata
        lines = archive.read(f"{info}/RECORD").decode().splitlines()
        record = list(csv.reader(lines))
        assert {name for name, _, _ in record} == set(archive.namelist())
        for name, digest, size in record[:-1]:
            data = archive.read(name)
            hashed = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
            assert (digest, size) == (f"sha256={hashed.rstrip('=')}", f"{len(data)}")

"""`make fork`: SGLang's wheel as a git tree, the series on top, and a wheel of that."""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from specpack import cli

LOCAL_VERSION = "+specpack"
# Fixed, so that the same wheel and series give the same commits.
_WHO = {"NAME": "specpack", "EMAIL": "specpack@localhost", "DATE": "2026-01-01T00:00Z"}
IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in _WHO.items()
}


def main() -> int:
    """Make the tree and the wheel; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path, help="the wheel of a SGLang release")
    parser.add_argument("folder", type=Path, help="the git tree; replaced if there")
    arguments = parser.parse_args()
    os.environ.update(IDENTITY)
    unpack(arguments.wheel, arguments.folder)
    code = cli.main(["export", str(arguments.folder)])
    if code == 0:
        made = repack(arguments.wheel, arguments.folder / "python")
        print(f"install with: pip install --no-deps {made}")
    return code


def unpack(wheel: Path, folder: Path) -> None:
    """A git tree with the wheel's package under `python`, as its only commit."""
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("sglang/"):
                archive.extract(name, folder / "python")
    for command in (
        ("init", "--quiet", "--initial-branch=main"),
        ("add", "--all", "--force"),
        ("commit", "--quiet", "--no-verify", "-m", f"{wheel.name} as released"),
    ):
        subprocess.run(["git", "-C", folder, *command], check=True)


def repack(wheel: Path, package: Path) -> Path:
    """The wheel with the files of a folder in it, under a local version beside it."""
    name, version, *tags = wheel.name.split("-")
    old, new = f"{name}-{version}", f"{name}-{version}{LOCAL_VERSION}"
    made = wheel.with_name("-".join([new, *tags]))
    records = []
    with zipfile.ZipFile(wheel) as base, zipfile.ZipFile(made, "w") as archive:
        for info in base.infolist():
            if info.filename == f"{old}.dist-info/RECORD":
                continue
            data = _content(base, info.filename, package, version)
            info.filename = info.filename.replace(f"{old}.", f"{new}.", 1)
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
            records.append(_record(info.filename, data))
        for name in _new_files(package, set(base.namelist())):
            data = (package / name).read_bytes()
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
            records.append(_record(name, data))
        record = f"{new}.dist-info/RECORD"
        archive.writestr(record, "".join([*records, f"{record},,\n"]))
    return made


def _new_files(package: Path, known: set[str]) -> list[str]:
    """The modules below a folder that are not among the known names."""
    files = package.rglob("*.py")
    return sorted({file.relative_to(package).as_posix() for file in files} - known)


def _content(base: zipfile.ZipFile, name: str, package: Path, version: str) -> bytes:
    ours = package / name
    if ours.is_file():
        return ours.read_bytes()
    data = base.read(name)
    if name.endswith(".dist-info/METADATA"):
        line = f"\nVersion: {version}"
        data = data.replace(line.encode(), (line + LOCAL_VERSION).encode(), 1)
    return data


def _record(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    # Names of tuned kernel configs hold commas.
    name = f'"{name}"' if "," in name else name
    return f"{name},sha256={digest.rstrip('=')},{len(data)}\n"


if __name__ == "__main__":
    sys.exit(main())

"""A small SGLang tree whose functions the tests patch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specpack.export import command, plan
from specpack.export.edits import write
from specpack.export.sources import Sources
from specpack.seams import Patch, Seam, fingerprint
from specpack.seams.source import Tree, find_function

HEADS = '''"""Heads."""

import os
from typing import Optional

from sglang.srt.base import Base

logger = os.environ


def gate(head):
    # The first line of the body.
    if head is None:
        return False
    return True


@staticmethod
def last(head, scale=1): return head


class Model(Base):
    """A model."""

    limit = 4

    def __init__(self, config):
        self.config = config

    @property
    def size(self) -> int:
        """How large."""
        return self.config.size

    def load(self, weights):
        if not weights:
            return
        for name in weights:
            if name == "stop":
                return self.limit + 1
            print(name)


class Other:
    def size(self):
        return 1


EntryClass = Model
'''
MODULES = {
    "srt.heads": HEADS,
    "srt.base": "class Base:\n    pass\n",
    "srt.helpers": "def is_packed(head):\n    return head == 2\n",
    # Imports the module that would have to import it.
    "srt.above": "from sglang.srt import heads\n\n\ndef judge(x):\n    return x\n",
}


class Library:
    """A source tree on disk, in a git checkout where a test makes one."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.root = top / "python" / "sglang"
        for module, text in MODULES.items():
            self.write(module, text)
        (self.root / "_version.py").write_text('__version__ = "0.0.1"\n')

    def write(self, module: str, text: str) -> None:
        file = self.root.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def tree(self) -> Tree:
        return Tree(self.root, "0.0.1")

    def prints(self, qualname: str) -> dict[str, str]:
        return {"0.0.1": fingerprint(find_function(HEADS, qualname))}

    def edited(self, *seams: Seam) -> str:
        """The text of `srt.heads` once a patch of these seams is written into it."""
        patch = make_patch("one", *seams)
        sources = Sources(self.tree)
        write(patch, sources)
        return sources.read("sglang.srt.heads")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", self.top, *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    def commit(self) -> None:
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "A Developer")
        self.git("config", "user.email", "a@b.example")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "base")


def make_patch(name: str, *seams: Seam, **fields: Any) -> Patch:
    return Patch(
        name=name,
        symptom=f"What {name} mends (FAULTS H1).",
        upstream="#1",
        removal="when it is mended",
        probe=lambda: False,
        seams=seams,
        title=fields.pop("title", f"Mend {name}"),
        **fields,
    )


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "checkout")


@pytest.fixture
def use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., None]]:
    """Makes some patches the series, and `fixed` those that probes find mended."""

    def use(*patches: Patch, fixed: tuple[str, ...] = ()) -> None:
        def together(chosen: Any, tree: Tree) -> Callable[[Patch], Any]:
            return lambda patch: (patch.name in fixed, "")

        monkeypatch.setattr(command, "SERIES", patches)
        monkeypatch.setattr(command, "together", together)
        monkeypatch.setattr(plan, "TESTS", tmp_path / "registered")

    yield use

"""A checkout through git's plumbing: commits are made without touching its files."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from specpack.export.sources import Refusal
from specpack.seams.source import Tree, tree_at


@dataclass(frozen=True)
class Checkout:
    """A git work tree that holds SGLang."""

    top: Path
    tree: Tree

    @property
    def package(self) -> str:
        """The folder that `sglang` is in, below the top."""
        return self.tree.root.parent.relative_to(self.top).as_posix()

    def git(self, *arguments: str, env: Mapping[str, str] = {}, stdin: str = "") -> str:
        """What git prints, without its last newline. Raises Refusal."""
        done = subprocess.run(
            ["git", "-C", str(self.top), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env={**os.environ, **env},
        )
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise Refusal(f"git {arguments[0]}: {last}")
        return done.stdout.removesuffix("\n")

    def has(self, revision: str) -> bool:
        """Whether a revision exists."""
        try:
            self.git("rev-parse", "--verify", "--quiet", revision)
        except Refusal:
            return False
        return True


def open_checkout(path: Path) -> Checkout:
    """The SGLang checkout at a folder. Raises Refusal."""
    tree = tree_at(path.resolve())
    if tree is None:
        raise Refusal(f"{path} is not a SGLang tree: it has no python/sglang/srt.")
    checkout = Checkout(path.resolve(), tree)
    try:
        top = checkout.git("rev-parse", "--show-toplevel")
        checkout.git("rev-parse", "--verify", "HEAD")
    except Refusal as refusal:
        raise Refusal(f"{path} is not a git checkout with a commit.") from refusal
    if Path(top).resolve() != checkout.top:
        raise Refusal(f"{path} is inside the git checkout {top}, not its top.")
    return checkout


def refuse_dirty(checkout: Checkout) -> None:
    """Raises Refusal where a tracked file differs from the last commit."""
    changed = checkout.git("status", "--porcelain", "--untracked-files=no")
    if changed:
        first = changed.splitlines()[0][3:]
        raise Refusal(f"{checkout.top} has changes not committed, such as {first}.")


def series_below(checkout: Checkout, tip: str, subjects: set[str]) -> list[str]:
    """The commits at a tip that have one of the subjects, oldest first."""
    log = checkout.git(
        "log", "--first-parent", f"-{len(subjects) + 1}", "--format=%H %s", tip
    )
    found = []
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        if subject not in subjects:
            break
        found.append(commit)
    return found[::-1]


@contextmanager
def tree_of(checkout: Checkout, commit: str) -> Iterator[Tree]:
    """SGLang's tree as a commit has it; the work tree's where that is the same."""
    if checkout.git("rev-parse", "HEAD") == commit:
        yield checkout.tree
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "base.tar"
        checkout.git("archive", "-o", str(archive), commit, "--", checkout.package)
        subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
        tree = tree_at(Path(folder, checkout.package))
        if tree is None:
            raise Refusal(f"{commit[:12]} has no {checkout.package}/sglang.")
        yield tree


def commit_files(
    checkout: Checkout, parent: str, commits: Sequence[tuple[str, dict[str, str]]]
) -> str:
    """Commit messages with their files on top of `parent`; the last commit's id."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        checkout.git("read-tree", parent, env=env)
        for message, files in commits:
            lines = [_index_line(checkout, parent, path, files[path]) for path in files]
            checkout.git(
                "update-index", "--add", "--index-info", env=env, stdin="".join(lines)
            )
            tree = checkout.git("write-tree", env=env)
            parent = checkout.git("commit-tree", tree, "-p", parent, stdin=message)
    return parent


def _index_line(checkout: Checkout, parent: str, path: str, text: str) -> str:
    present = checkout.git("ls-tree", parent, "--", path)
    mode = present.split()[0] if present else "100644"
    blob = checkout.git("hash-object", "-w", "--stdin", stdin=text)
    return f"{mode} {blob}\t{path}\n"


def file_at(checkout: Checkout, commit: str, path: str) -> str | None:
    """The text of a file in a commit, or None where it has none."""
    if not checkout.has(f"{commit}:{path}"):
        return None
    return checkout.git("show", f"{commit}:{path}") + "\n"

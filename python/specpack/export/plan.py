"""What an export would commit: worked out in memory, all of it or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import specpack
from specpack.export import edits
from specpack.export.drift import explain
from specpack.export.imports import in_their_order
from specpack.export.message import message
from specpack.export.sources import Refusal, Sources
from specpack.export.untouched import same_elsewhere
from specpack.seams.kinds import Patch
from specpack.seams.source import Tree
from specpack.seams.verify import RunProbe, Verdict, verify

TESTS = Path(specpack.__file__).parents[2] / "test" / "registered"
IsTaken = Callable[[str], "str | None"]


@dataclass(frozen=True)
class Commit:
    """One patch, its message and the whole text of each file it changes or adds."""

    patch: Patch
    message: str
    files: dict[str, str]


@dataclass(frozen=True)
class Plan:
    """The commits, and what is left out and why."""

    commits: tuple[Commit, ...]
    notes: tuple[str, ...]


def choose(series: Sequence[Patch], names: Iterable[str]) -> tuple[Patch, ...]:
    """The named patches and those they require, in order; all where none is named."""
    wanted = set(names)
    unknown = sorted(wanted - {patch.name for patch in series})
    if unknown:
        known = ", ".join(patch.name for patch in series)
        raise Refusal(f"There is no patch {', '.join(unknown)}. There are: {known}.")
    if not wanted:
        return tuple(series)
    for patch in reversed(series):
        if patch.name in wanted:
            wanted.update(patch.requires)
    return tuple(patch for patch in series if patch.name in wanted)


def make_plan(
    series: Sequence[Patch],
    chosen: Sequence[Patch],
    tree: Tree,
    package: str,
    present: IsTaken,
    probe: RunProbe,
) -> Plan:
    """The commits that put the chosen patches onto a tree.

    `package` is the folder of `sglang` and `present` gives the text of a file of the
    checkout, or None. Raises Refusal where a seam has drifted.
    """
    verdicts = verify(chosen, tree, probe)
    drifted = [v for v in verdicts if v.state in ("drifted", "left out")]
    if drifted:
        raise Refusal(explain(drifted, tree))
    applied = [v.patch for v in verdicts if v.state == "applies"]
    tests, notes = _tests(series, chosen, applied)
    notes = [*(_not_needed(v) for v in verdicts if v.state != "applies"), *notes]
    sources = Sources(tree)
    commits = []
    for patch in applied:
        files = _changed_files(patch, sources, package)
        added = _test_files(patch, tests[patch.name], present)
        text = message(patch, added)
        commits.append(Commit(patch, text, {**files, **added}))
    return Plan(tuple(commits), tuple(notes))


def _not_needed(verdict: Verdict) -> str:
    return f"{verdict.patch.name} is already there: skipped"


def _changed_files(patch: Patch, sources: Sources, package: str) -> dict[str, str]:
    before = dict(sources.edited)
    edits.write(patch, sources)
    files = {}
    for module, text in sources.edited.items():
        old = before.get(module) or sources.tree.text(module)
        if text == old:
            continue
        names = {seam.qualname for seam in patch.seams if seam.module == module}
        if old is not None and not same_elsewhere(old, text, names):
            raise Refusal(f"{patch.name}: more of {module} would change than it may.")
        path = sources.path(module).relative_to(sources.tree.root.parent)
        files[f"{package}/{path.as_posix()}"] = text
    return files


def _tests(
    series: Sequence[Patch], chosen: Sequence[Patch], applied: Sequence[Patch]
) -> tuple[dict[str, list[str]], list[str]]:
    """The test files of each patch, and a note for each that must stay behind.

    A file travels with the last of the patches that list it, and only with all.
    """
    tests: dict[str, list[str]] = {patch.name: [] for patch in applied}
    notes = []
    for path in dict.fromkeys(path for patch in applied for path in patch.tests):
        listing = [patch for patch in series if path in patch.tests]
        missing = [patch.name for patch in listing if patch not in chosen]
        if missing:
            others = missing[0] + (" and others" if missing[1:] else "")
            notes.append(f"{path} stays behind: it also tests {others}")
        else:
            last = [patch for patch in applied if path in patch.tests][-1]
            tests[last.name].append(path)
    return tests, notes


def _test_files(patch: Patch, paths: Iterable[str], present: IsTaken) -> dict[str, str]:
    files = {}
    for path in paths:
        target = f"test/registered/{path}"
        text = in_their_order(_our_test(path))
        if present(target) not in (None, text):
            target = _beside(target, patch)
            if present(target) not in (None, text):
                raise Refusal(f"The checkout has a {target} of its own.")
        files[target] = text
    return {path: text for path, text in files.items() if present(path) != text}


def _our_test(path: str) -> str:
    file = TESTS / path
    if not file.is_file():
        raise Refusal(f"There is no {file}: export from a checkout of specpack.")
    return file.read_text(encoding="utf-8")


def _beside(path: str, patch: Patch) -> str:
    """A name of our own for a test whose name is taken."""
    folder, _, name = path.rpartition("/")
    if not name.startswith("test_"):
        raise Refusal(f"The checkout has a {path} of its own, which our tests import.")
    ours = patch.name.replace("-", "_")
    return f"{folder}/{name.removesuffix('.py')}_{ours}.py"

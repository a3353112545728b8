"""Commit messages in the order of SGLang's pull request template."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from specpack.seams.kinds import Addition, Attribute, Guard, Patch, Seam

_HOW = {
    "guard": "its case at the top, everything else as before",
    "around": "the arguments before, the result after",
    "replace": "rewritten",
    "addition": "new",
    "attribute": "set",
}


def subject(patch: Patch) -> str:
    """The first line of a patch's commit."""
    return f"[Spec] {patch.title or patch.name}"


def message(patch: Patch, tests: Iterable[str]) -> str:
    """A patch's commit message; `tests` are the files that come with it."""
    tests = tuple(tests)
    sections = (
        ("Motivation", _motivation(patch)),
        ("Modifications", "\n".join(_modification(seam) for seam in patch.seams)),
        ("Accuracy Tests", _accuracy(patch, tests)),
        ("Speed Tests and Profiling", _wrapped(patch.cost or "Not measured.")),
        ("Checklist", _checklist(tests)),
    )
    # Underlined, because git takes lines that start with # for comments.
    body = [f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections]
    return "\n\n".join([subject(patch), *body]) + "\n"


def _motivation(patch: Patch) -> str:
    related = f"Related: {patch.upstream}. This can go {patch.removal}."
    return f"{_wrapped(patch.symptom)}\n\n{_wrapped(related)}"


def _modification(seam: Seam) -> str:
    return f"- `{seam.qualname}` in {seam.module}: {_HOW[seam.kind]}"


def _accuracy(patch: Patch, tests: tuple[str, ...]) -> str:
    kept = all(isinstance(s, (Guard, Addition, Attribute)) for s in patch.seams)
    text = (
        "Whatever the new lines do not match takes its present path. " if kept else ""
    )
    if tests:
        return _wrapped(text + "The tests below fail without this series.")
    listed = ", ".join(patch.tests)
    later = (
        f"Tested by {listed}, with a later commit." if listed else "No test of its own."
    )
    return _wrapped(text + later)


def _checklist(tests: tuple[str, ...]) -> str:
    lines = ["- [x] Formatted as .pre-commit-config.yaml asks"]
    lines += [f"- [x] Unit tests: {path}" for path in tests]
    lines += ["- [x] No documented option changes", "- [ ] Label `run-ci`"]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 76, break_long_words=False, break_on_hyphens=False)

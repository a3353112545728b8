"""Commit messages in the order of SGLang's pull request template."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from specpack.seams.kinds import (
    Addition,
    Attribute,
    Guard,
    NewModule,
    Patch,
    Seam,
)
from specpack.seams.modules import source_file

_KEEPING = (Guard, Addition, Attribute, NewModule)


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
    symptom = re.sub(r" \(FAULTS [^)]*\)", "", patch.symptom)
    return f"{_wrapped(symptom)}\n\nRelated: {patch.upstream}."


def _modification(seam: Seam) -> str:
    """The place, and the first paragraph of what we have to say about it."""
    place, said = f"- `{seam.qualname}` in `{seam.module}`", _docstrings(seam)
    if isinstance(seam, NewModule):
        place = f"- `{seam.module}`, new"
    what = " ".join(text.split("\n\n")[0].replace("``", "`") for text in said)
    return _wrapped(f"{place}: {what}" if what else place, "  ")


def _docstrings(seam: Seam) -> list[str]:
    if isinstance(seam, NewModule):
        module = ast.parse(source_file(seam.source).read_text(encoding="utf-8"))
        return [ast.get_docstring(module) or ""]
    return [inspect.getdoc(body) or "" for body in _bodies(seam)]


def _bodies(seam: Seam) -> list[Callable[..., Any]]:
    fields = (getattr(seam, name, None) for name in ("function", "before", "after"))
    return [field for field in fields if field is not None]


def _accuracy(patch: Patch, tests: tuple[str, ...]) -> str:
    kept = all(isinstance(seam, _KEEPING) for seam in patch.seams)
    text = (
        "Whatever the new lines do not match takes its present path. " if kept else ""
    )
    if tests:
        return _wrapped(text + "The tests below include those that fail without it.")
    listed = ", ".join(patch.tests) or "no test of its own"
    return _wrapped(f"{text}Tested with the rest of the series: {listed}.")


def _checklist(tests: tuple[str, ...]) -> str:
    lines = ["- [x] Formatted as .pre-commit-config.yaml asks"]
    lines += [f"- [x] Unit tests: {path}" for path in tests]
    lines += ["- [x] No documented option changes", "- [ ] Label `run-ci`"]
    return "\n".join(lines)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        76,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )

"""`specpack eval compare`: two runs, request by request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specpack.evals import measures
from specpack.evals.client import Answer
from specpack.evals.decode_log import windows_of
from specpack.evals.errors import EvalError
from specpack.evals.folder import SETTING, Folder

Answers = Mapping[int, Answer]
SAME_QUESTIONS = ("data_sha256", "num_shots", "api", "chat_template_kwargs")
SAMPLES, SEED = 10_000, 0
INTERVAL = (2.5, 97.5)  # percent


@dataclass(frozen=True)
class Side:
    """One run of a folder."""

    folder: Folder
    run: str

    @property
    def label(self) -> str:
        return f"{self.folder.path.name}/{self.run}"

    def answers(self) -> dict[int, Answer]:
        records = self.folder.answers(self.run)
        return {n: r for n, r in sorted(records.items()) if isinstance(r, Answer)}

    def windows(self) -> list[float]:
        starts = [s for s in self.folder.starts(self.run) if s["log"]]
        path = self.folder.path
        return [w for s in starts for w in windows_of(path / s["log"], s["start"])]


def sides(path: Path) -> dict[str, Side]:
    """The runs of an evaluation's folder, or the one whose completions ``path`` is.

    Raises:
        EvalError: no evaluation is there.
    """
    files = sorted(path.glob("completions/*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise EvalError(f"{path} holds no completions: give a folder of specpack eval")
    if not (files[0].parents[1] / SETTING).is_file():
        raise EvalError(f"{path} is not in a folder of specpack eval: no {SETTING}")
    return {f.stem: Side(Folder(f.parents[1]), f.stem) for f in files}


def pairs(left: Path, right: Path) -> list[tuple[Side, Side]]:
    """The runs of the same name; where each side has one run, those two."""
    a, b = sides(left), sides(right)
    require_same_questions(left, right, next(iter(a.values())), next(iter(b.values())))
    if len(a) == len(b) == 1:
        return [(*a.values(), *b.values())]
    common = [name for name in a if name in b]
    if not common:
        raise EvalError(
            f"no run has the same name in both ({', '.join(a)}; {', '.join(b)}): name "
            "two files, such as OUT/completions/RUN.jsonl"
        )
    return [(a[name], b[name]) for name in common]


def require_same_questions(left: Path, right: Path, a: Side, b: Side) -> None:
    one, two = (json.loads((s.folder.path / SETTING).read_text()) for s in (a, b))
    for name in SAME_QUESTIONS:
        if one.get(name) != two.get(name):
            raise EvalError(
                f"{left} and {right} asked different things: {name} is {one.get(name)} "
                f"in one and {two.get(name)} in the other"
            )


def compare(left: Side, right: Side, samples: int = SAMPLES) -> dict[str, Any]:
    """Agreement, where completions part, and accept length, ``right`` against ``left``.

    Raises:
        EvalError: the two have no request in common.
    """
    a, b = left.answers(), right.answers()
    equal, common = measures.agreement(a, b)
    if not common:
        raise EvalError(f"{left.label} and {right.label} have no answer in common")
    return {
        "left": left.label,
        "right": right.label,
        "equal": equal,
        "compared": common,
        "differences": differences(a, b),
        "accept_length": {
            "windows": plain_difference(left.windows(), right.windows()),
            "per_request": bootstrap(a, b, tokens_and_steps, samples),
            "histogram": bootstrap(a, b, accept_tokens_and_steps, samples),
        },
    }


def differences(left: Answers, right: Answers) -> list[dict[str, Any]]:
    """The completions that are not equal: where they part, and into which tokens."""
    found = []
    for request in sorted(left.keys() & right.keys()):
        a, b = left[request].token_ids, right[request].token_ids
        at = measures.first_difference(a, b)
        if at is not None:
            found.append(
                {
                    "id": request,
                    "position": at,
                    "left": a[at] if at < len(a) else None,
                    "right": b[at] if at < len(b) else None,
                    "lengths": [len(a), len(b)],
                }
            )
    return found


def plain_difference(
    left: Sequence[float], right: Sequence[float]
) -> dict[str, Any] | None:
    """The headline's; windows span requests, so there is no interval over these."""
    a, b = measures.window_mean(left), measures.window_mean(right)
    if a is None or b is None:
        return None
    return {"left": a, "right": b, "difference": b - a, "ratio": b / a}


def tokens_and_steps(answer: Answer) -> tuple[int, int]:
    return answer.completion_tokens, answer.spec_verify_ct or 0


def accept_tokens_and_steps(answer: Answer) -> tuple[int, int]:
    steps = answer.spec_verify_ct or 0
    return (answer.spec_num_correct_drafts or 0) + steps, steps


def bootstrap(
    left: Answers, right: Answers, counts: Any, samples: int
) -> dict[str, Any] | None:
    """Difference and ratio of the pooled accept lengths, with 95 % intervals.

    The requests that both answered are drawn together, with replacement, ``samples``
    times. None where one side took no verify step.
    """
    import numpy as np

    both = sorted(left.keys() & right.keys())
    a, b = (np.array([counts(s[n]) for n in both], float) for s in (left, right))
    if not a[:, 1].sum() or not b[:, 1].sum():
        return None
    random = np.random.default_rng(SEED)
    drawn = random.integers(len(both), size=(samples, len(both)))
    with np.errstate(invalid="ignore", divide="ignore"):
        one, two = (np.divide(*side[drawn].sum(1).T) for side in (a, b))
    value_a, value_b = (float(np.divide(*side.sum(0))) for side in (a, b))
    return {
        "left": value_a,
        "right": value_b,
        "difference": value_b - value_a,
        "difference_interval": np.nanpercentile(two - one, INTERVAL).tolist(),
        "ratio": value_b / value_a,
        "ratio_interval": np.nanpercentile(two / one, INTERVAL).tolist(),
    }


def show(found: Mapping[str, Any], console: Console) -> None:
    console.print(
        f"{found['equal']} of {found['compared']} completions are equal "
        f"({found['left']} and {found['right']})",
        highlight=False,
    )
    if found["differences"]:
        console.print(differences_table(found["differences"]))
    if any(found["accept_length"].values()):
        console.print(lengths_table(found["accept_length"]))


def differences_table(found: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="first differing token (an index into the completion, from 0)")
    for column in ("request", "index", "left", "right", "tokens left", "tokens right"):
        table.add_column(column, justify="right")
    for each in found:
        tokens = ["end" if each[s] is None else str(each[s]) for s in ("left", "right")]
        lengths = map(str, each["lengths"])
        table.add_row(str(each["id"]), str(each["position"]), *tokens, *lengths)
    return table


def lengths_table(found: Mapping[str, Any]) -> Table:
    table = Table(title="accept length, with 95 % bootstrap intervals over requests")
    for column in ("counted by", "left", "right", "right − left", "right ÷ left"):
        table.add_column(column, justify="left" if column == "counted by" else "right")
    for name, each in found.items():
        if each:
            values = (f"{each['left']:.3f}", f"{each['right']:.3f}")
            spans = (with_interval(each, "difference"), with_interval(each, "ratio"))
            table.add_row(name.replace("_", " "), *values, *spans)
    return table


def with_interval(each: Mapping[str, Any], name: str) -> str:
    sign = "+" if name == "difference" else ""
    text = f"{each[name]:{sign}.4f}"
    if span := each.get(f"{name}_interval"):
        text += f" [{span[0]:{sign}.4f}, {span[1]:{sign}.4f}]"
    return text

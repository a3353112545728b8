"""What `specpack eval` does with its arguments."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from specpack.evals import gsm8k, markdown, plot
from specpack.evals.errors import EvalError
from specpack.evals.folder import Folder, as_json, opened
from specpack.evals.markdown import COLUMNS
from specpack.evals.progress import reporting
from specpack.evals.provenance import versions
from specpack.evals.report import answered, failures, report
from specpack.evals.running import as_shell, evaluate, is_finished, missing
from specpack.evals.settings import Evaluation, as_setting, from_file, from_table

WIDTH = 150  # of the table where the output is no terminal
SHARED = (
    *("examples", "num_shots", "max_tokens", "temperature", "concurrency", "api"),
    *("data", "port", "ready_seconds"),
)


def evaluation_of(arguments: argparse.Namespace) -> Evaluation:
    """The evaluation of the run file, or of a table made of the options."""
    if arguments.words:
        return from_file(Path(arguments.words[0]))
    return from_table(table_of(arguments), Path.cwd())


def table_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run file with the same meaning as the options would hold."""
    given = vars(arguments)
    table = {name: given[name] for name in SHARED if given[name] is not None}
    table["flags"] = shlex.split(arguments.flags)
    table["environment"] = environment_of(arguments.env)
    if arguments.chat_template_kwargs:
        table["chat_template_kwargs"] = json_object(arguments.chat_template_kwargs)
    if arguments.url:
        return table | {"runs": [chosen(arguments, "url", "server_log", "sglang")]}
    return table | runs_of(arguments)


def chosen(arguments: argparse.Namespace, *names: str) -> dict[str, str]:
    """The options among ``names`` that were given."""
    return {name: given for name in names if (given := getattr(arguments, name))}


def runs_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The run asked for, after the same target without speculation."""
    plain = chosen(arguments, "target", "sglang") | {"name": "none"}
    if arguments.algorithm in (None, "none"):
        if arguments.draft:
            raise EvalError("--draft needs --algorithm, such as DFLASH")
        return {"runs": [plain]}
    run = plain | chosen(arguments, "algorithm", "draft")
    run["name"] = arguments.algorithm
    if arguments.no_reference:
        return {"runs": [run]}
    return {"runs": [plain, run], "reference": "none"}


def environment_of(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise EvalError(f"--env {pair}: write NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise EvalError(f"--chat-template-kwargs {text}: write a JSON object")
    return value


def folder_of(arguments: argparse.Namespace, whole: Evaluation) -> Path:
    """``--out``, else a folder that the same command finds again."""
    if arguments.out:
        return arguments.out
    if arguments.words:
        return Path("out") / f"eval-{Path(arguments.words[0]).stem}"
    run = whole.runs[-1]
    named = Path(run.target).name if run.target else run.url.split("//")[-1]
    parts = (named, run.sglang, run.algorithm)
    return Path("out") / f"eval-{'-'.join(parts)}".replace(":", "-").replace("/", "-")


def run_evaluation(arguments: argparse.Namespace) -> int:
    """Evaluate, write the report, print its table; 0 where it is evidence throughout."""
    whole, console = evaluation_of(arguments), Console()
    data = gsm8k.load(Path(whole.data) if whole.data else None)
    problems = gsm8k.problems(data, whole.num_shots, whole.examples)
    setting = as_setting(whole)
    setting |= {"data_sha256": data.digest, "versions": versions()}
    setting["servers"] = {run.name: as_shell(run) for run in whole.runs}
    path = folder_of(arguments, whole)
    if not plot.can_plot():
        console.print(plot.HINT, highlight=False)
    with opened(path, setting) as folder:
        done = sum(len(answered(folder, run)) for run in whole.runs)
        left = unfinished(whole, problems, folder)
        with reporting(console, done + left, done) as reporter:
            evaluate(whole, problems, folder, reporter)
        found = write(whole, setting, problems, folder)
    Console(width=None if console.is_terminal else WIDTH).print(as_table(found["rows"]))
    console.print(f"written to {path}", highlight=False)
    faults = [f"{r['name']}: {fault}" for r in found["rows"] for fault in r["faults"]]
    for fault in faults:
        console.print(f"not as it should be: {fault}", markup=False, highlight=False)
    return 1 if faults else 0


def unfinished(whole: Evaluation, problems: list[gsm8k.Problem], folder: Folder) -> int:
    """The number of requests that this command has to ask."""
    runs = [run for run in whole.runs if not is_finished(folder, run, problems)]
    return sum(len(missing(folder, run, problems)) for run in runs)


def write(
    whole: Evaluation,
    setting: Mapping[str, Any],
    problems: list[gsm8k.Problem],
    folder: Folder,
) -> dict[str, Any]:
    """``report.json``, ``report.md`` and ``accept_length.png``."""
    found = report(whole, setting, problems, folder)
    failed = {run.name: failures(folder, run) for run in whole.runs}
    (folder.path / "report.json").write_text(as_json(found))
    picture = folder.path / "accept_length.png"
    if plot.can_plot():
        answers = {run.name: answered(folder, run) for run in whole.runs}
        plot.plot(found["rows"], answers, picture)
    shown = picture.name if picture.exists() else None
    (folder.path / "report.md").write_text(markdown.as_markdown(found, failed, shown))
    return found


def as_table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    for name, _ in COLUMNS:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(show(row) for _, show in COLUMNS))
    return table


def run_comparison(arguments: argparse.Namespace) -> int:
    """Print the comparison of two folders or runs."""
    from specpack.evals.compare import compare, pairs, show

    left, right = map(Path, arguments.words[1:])
    found = [compare(*pair) for pair in pairs(left, right)]
    if arguments.json:
        print(as_json(found), end="")
        return 0
    console = Console()
    for each in found:
        show(each, Console(width=None if console.is_terminal else WIDTH))
    return 0

"""``report.md``: the table that reviewers expect, and above it how it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], str]]

WHY_THEY_DIFFER = """\
Three ways to count, all with the bonus token:

- **accept length** is the mean of the scheduler's `accept len` over every decode-log
  window of the run, as `sglang` logs it: the tokens that verify steps committed, by
  the steps. The steps after a run's last full window are in none, a window's value has
  two decimals, and under the overlap scheduler a step that was already under way when
  its request ended counts too.
- **per request** is `completion_tokens` ÷ `spec_verify_ct` of `meta_info`, summed over all
  requests. The first token of a completion comes from the prefill, for which there is no
  verify step, so it is higher by (number of requests ÷ verify steps); what a last step
  committed behind the end of a completion is cut off, so it is lower by that.
- **histogram** is one more than the mean of `spec_correct_drafts_histogram`: only verify
  steps, whole, of requests that were answered. It should be closest to the first.

The gauge `sglang:spec_accept_length` holds the last window only and is not used."""


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def equal(row: Row) -> str:
    if row["compared"] is None:
        return "reference" if row["result"] == "serves" else "–"
    return f"{row['equal']}/{row['compared']}" if row["compared"] else "–"


def result(row: Row) -> str:
    if row["error"]:
        return f"fails: {row['error'].split(' (exit')[0].split(' (log')[0]}"
    failed = f", {row['failed']} requests failed" if row["failed"] else ""
    partly = row["answered"] + row["failed"] < row["asked"]
    return row["result"] + (" (incomplete)" if partly else "") + failed


COLUMNS: tuple[Column, ...] = (
    ("target head", lambda row: row["target_head"]),
    ("draft", lambda row: row["draft"]),
    ("branch", lambda row: row["sglang"]),
    ("speculation", lambda row: row["speculation"]),
    ("result", result),
    ("GSM8K accuracy", lambda row: number(row["accuracy"])),
    ("accept length", lambda row: number(row["accept_length"])),
    ("completions equal to the reference", equal),
    ("tokens/s", lambda row: number(row["tokens_per_second"], 1)),
)
COUNTS: tuple[Column, ...] = (
    ("run", lambda row: row["name"]),
    ("accept length", lambda row: number(row["accept_length"])),
    ("windows", lambda row: str(row["windows"])),
    ("per request", lambda row: number(row["accept_length_per_request"])),
    ("histogram", lambda row: number(row["accept_length_histogram"])),
    ("verify steps", lambda row: str(row["verify_steps"])),
    ("completion tokens", lambda row: str(row["completion_tokens"])),
)


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    cells = [[name for name, _ in columns], ["---"] * len(columns)]
    cells += [[cell(show(row)) for _, show in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def as_markdown(
    report: Mapping[str, Any], failed: Mapping[str, list[Any]], picture: str | None
) -> str:
    rows, setting = report["rows"], report["setting"]
    starts = [start for each in report["starts"].values() for start in each]
    speculative = [row for row in rows if row["verify_steps"]]
    parts = [
        "# GSM8K accept length and agreement",
        "\n".join(f"- {line}" for line in facts(setting, starts)),
        servers(setting["servers"], report["starts"]),
        table(COLUMNS, rows),
        f"A run's reference: {references(rows)}." if references(rows) else "",
    ]
    if speculative:
        parts += ["## Accept length, counted in three ways", table(COUNTS, speculative)]
        parts += [WHY_THEY_DIFFER, f"![accept length]({picture})" if picture else ""]
    parts += faults(rows), requests(failed)
    return "\n\n".join(part for part in parts if part) + "\n"


def facts(setting: Mapping[str, Any], starts: Sequence[Row]) -> Iterator[str]:
    """The setting, a line a fact; "unknown" where a server did not say."""
    made = [start["provenance"] for start in starts]
    yield f"command: {several('`' + m['command'] + '`' for m in made)}"
    yield f"specpack commit: {several(m['git_sha'] for m in made)}"
    yield f"versions: {several(versions(m) for m in made)}"
    yield f"device: {several(device(s) for s in starts)}"
    yield f"TP: {several(s['server']['tp_size'] for s in starts)}"
    yield (
        f"data: {setting['data'] or 'GSM8K test set'}, sha256 {setting['data_sha256']}"
    )
    yield (
        f"{setting['examples']} examples after {setting['num_shots']} shots, at most "
        f"{setting['max_tokens']} tokens, temperature {setting['temperature']:g}, "
        f"{setting['concurrency']} request(s) at a time"
    )
    yield f"prompts: {framing(setting)}"


def several(values: Any) -> str:
    """The distinct values in the order they came."""
    return "; ".join(dict.fromkeys(str(v or "unknown") for v in values)) or "unknown"


def versions(made: Row) -> str:
    named = made["versions"] | {"Python": made["python"]}
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)


def device(start: Row) -> str:
    made, named = start["provenance"], start["server"]["device"] or "unknown"
    hardware = made["cpu"] if named == "cpu" else ", ".join(made["gpus"] or ())
    return f"{named} ({hardware})" if hardware else named


def framing(setting: Mapping[str, Any]) -> str:
    if setting["api"] == "generate":
        return "raw text to /generate, no chat template"
    chosen = setting["chat_template_kwargs"]
    thinking = f"with {chosen}" if chosen else "thinking mode as the template has it"
    return f"one user message through the model's chat template, {thinking}"


def servers(commands: Mapping[str, str], starts: Mapping[str, Sequence[Row]]) -> str:
    """The command of each run's server, and how often it was started."""
    lines = []
    for name, command in commands.items():
        times = len(starts[name])
        again = f" (started {times} times)" if times > 1 else ""
        lines.append(f"# {name}{again}\n{command}")
    return "```\n" + "\n".join(lines) + "\n```"


def references(rows: Sequence[Row]) -> str:
    pairs = [f"{r['reference']} for {r['name']}" for r in rows if r["compared"]]
    return ", ".join(pairs)


def faults(rows: Sequence[Row]) -> str:
    lines = [f"- {row['name']}: {fault}" for row in rows for fault in row["faults"]]
    return "## Not as it should be\n\n" + "\n".join(lines) if lines else ""


def requests(failed: Mapping[str, list[Any]]) -> str:
    """Every request without an answer; the accuracy leaves them out."""
    lines = [
        f"- {name}, request {each['id']}: {each['error']}"
        for name, records in failed.items()
        for each in records
    ]
    return "## Failed requests\n\n" + "\n".join(lines) if lines else ""

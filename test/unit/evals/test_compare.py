from __future__ import annotations

import json
from pathlib import Path

import pytest

from specpack.evals.client import Answer
from specpack.evals.compare import bootstrap, compare, pairs, sides, tokens_and_steps
from specpack.evals.errors import EvalError
from specpack.evals.folder import opened

SETTING = {"data_sha256": "d", "num_shots": 5, "api": "chat"}
LOG = b"warm-up: Decode batch, accept len: 9.00\n"


def answer(number: int, ids=(1, 2, 3), steps: int = 1) -> Answer:
    counts = (steps, len(ids) - 1 - steps, (0, 0, steps))
    return Answer(number, tuple(ids), "", "stop", 9, len(ids), 0.0, 1.0, *counts)


@pytest.fixture
def folder(tmp_path: Path):
    def make(name: str, runs: dict[str, list[Answer]], **setting: object) -> Path:
        with opened(tmp_path / name, SETTING | setting) as made:
            for run, answers in runs.items():
                made.new_log(run).write_bytes(
                    LOG + b"Decode batch, accept len: 2.50\n" * len(answers)
                )
                made.note(run, log=f"logs/{run}-1.log", start=len(LOG))
                for each in answers:
                    made.append(run, each)
        return tmp_path / name

    return make


def test_agreement_and_where_completions_part(folder):
    left = folder("a", {"x": [answer(0), answer(1), answer(2)]})
    right = folder("b", {"x": [answer(0), answer(1, (1, 7, 3)), answer(2, (1, 2))]})
    ((a, b),) = pairs(left, right)
    found = compare(a, b, samples=10)
    assert (found["equal"], found["compared"]) == (1, 3)
    parted = [
        (d["id"], d["position"], d["left"], d["right"]) for d in found["differences"]
    ]
    assert parted == [(1, 1, 2, 7), (2, 2, 3, None)]
    assert found["accept_length"]["windows"]["ratio"] == 1.0


def test_runs_are_paired_by_name(folder):
    left = folder("a", {"x": [answer(0)], "y": [answer(0)]})
    right = folder("b", {"y": [answer(0)], "z": [answer(0)]})
    assert [(a.run, b.run) for a, b in pairs(left, right)] == [("y", "y")]


def test_two_single_runs_need_no_common_name(folder):
    left, right = folder("a", {"x": [answer(0)]}), folder("b", {"z": [answer(0)]})
    assert [(a.run, b.run) for a, b in pairs(left, right)] == [("x", "z")]


def test_two_runs_of_one_folder(folder):
    files = folder("a", {"x": [answer(0)], "z": [answer(0)]}) / "completions"
    ((a, b),) = pairs(files / "x.jsonl", files / "z.jsonl")
    assert (a.label, b.label) == ("a/x", "a/z")


def test_the_interval_is_over_requests_and_holds_the_value():
    left = {n: answer(n, range(7 + n % 5), 2) for n in range(60)}
    right = {n: answer(n, range(8 + n % 5), 2) for n in range(60)}
    found = bootstrap(left, right, tokens_and_steps, samples=2000)
    low, high = found["ratio_interval"]
    assert low < found["ratio"] < high
    assert found["difference"] == pytest.approx(0.5)
    # Drawn together, each pair differs by half a token: the interval has no width.
    assert found["difference_interval"] == pytest.approx([0.5, 0.5])
    assert found == bootstrap(left, right, tokens_and_steps, samples=2000)


def test_without_speculation_there_is_no_accept_length():
    plain = {0: Answer(0, (1,), "", "stop", 9, 1, 0.0, 1.0)}
    assert bootstrap(plain, {0: answer(0)}, tokens_and_steps, samples=10) is None


def test_different_questions_are_refused(folder):
    left = folder("a", {"x": [answer(0)]})
    right = folder("b", {"x": [answer(0)]}, num_shots=3)
    with pytest.raises(EvalError, match="num_shots is 5 in one and 3 in the other"):
        pairs(left, right)


def test_no_run_in_common(folder):
    left = folder("a", {"x": [answer(0)], "y": [answer(0)]})
    right = folder("b", {"z": [answer(0)]})
    with pytest.raises(EvalError, match=r"no run has the same name .*x, y; z"):
        pairs(left, right)


def test_no_request_in_common(folder):
    left, right = folder("a", {"x": [answer(0)]}), folder("b", {"x": [answer(1)]})
    with pytest.raises(EvalError, match="no answer in common"):
        compare(*pairs(left, right)[0])


def test_not_a_folder_of_an_evaluation(tmp_path: Path):
    with pytest.raises(EvalError, match="holds no completions"):
        sides(tmp_path)
    with pytest.raises(EvalError, match="holds no completions"):
        sides(tmp_path / "none")


def test_the_command(folder, specpack_eval, capsys):
    left, right = (folder(n, {"x": [answer(0), answer(1)]}) for n in "ab")
    assert specpack_eval("compare", left, right) == 0
    assert "2 of 2 completions are equal" in capsys.readouterr().out
    assert specpack_eval("compare", left, right, "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["equal"] == 2

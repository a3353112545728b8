"""The prompts and the scores are those of SGLang's own evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from specpack.evals import gsm8k
from specpack.evals.errors import EvalError
from specpack.evals.gsm8k import is_correct, load, problems

QUESTIONS = (
    ("Ann has 3 pens.\nHow many?", "She has 3.\n#### 3"),
    ("A house for $1,250,000?", "Yes.\n#### 1,250,000"),
    ("How cold — in °C?", "It is\n#### -7"),
    ("What share?", "Half, so\n#### 0.5"),
    ("Wie viel\u2028kostet es?", "#### 12"),
    ("More than one number?", "1 and 2\n#### 18"),
)
COMPLETIONS = (
    " 3",
    " The answer is 1,250,000.",
    " It fell to -7 degrees",
    " 0.50",
    " 12.",
    " 18.0 dollars",
    "",
    "no number at all",
    "007",
    " 5 - 7",
    " $3,0.",
    "3\n\nQuestion: next? 4",
    "1.2.3",
    " ٣",
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "test.jsonl"
    lines = (
        json.dumps(dict(zip(("question", "answer"), qa)), ensure_ascii=False)
        for qa in QUESTIONS
    )
    path.write_text("# a comment, as SGLang allows\n" + "\n".join(lines) + "\n")
    return path


class Recording:
    """In place of SGLang's sampler: keeps the prompts and answers them all alike."""

    def __init__(self, text: str) -> None:
        self.text, self.prompts = text, []

    def _pack_message(self, role: str, content: str) -> dict[str, str]:
        return {"role": role, "content": content}

    def __call__(self, messages: list[dict[str, str]]) -> str:
        assert [m["role"] for m in messages] == ["user"]
        self.prompts.append(messages[0]["content"])
        return self.text


@pytest.fixture(scope="module")
def theirs():
    """SGLang's evaluation on given data; where SGLang is not installed, no test."""
    module = pytest.importorskip("sglang.test.simple_eval_mixed_prefix_gsm8k")

    def evaluation(path: Path, shots: int):
        return module.GSM8KEval(None, 1, shots, str(path))

    return evaluation


@pytest.mark.parametrize("shots", [0, 1, 3, 5])
def test_prompts(theirs, data: Path, shots: int):
    sampler = Recording("1")
    theirs(data, shots)(sampler)
    ours = problems(load(data), shots, len(QUESTIONS) - shots)
    assert [p.prompt for p in ours] == sampler.prompts


@pytest.mark.parametrize("text", COMPLETIONS)
def test_scores(theirs, data: Path, text: str):
    result = theirs(data, 1)(Recording(text))
    ours = problems(load(data), 1, 5)
    assert sum(is_correct(text, p) for p in ours) / len(ours) == result.score


def test_every_right_answer_is_scored_right(data: Path):
    for problem, (_, answer) in zip(problems(load(data), 0, 6), QUESTIONS):
        assert is_correct(answer, problem)


def test_ids_are_rows_of_the_data(data: Path):
    assert [p.id for p in problems(load(data), 2, 3)] == [2, 3, 4]


def test_too_few_rows_are_refused_with_the_numbers(data: Path):
    with pytest.raises(EvalError, match="6 rows: 5 shots leave 1, fewer than the 2"):
        problems(load(data), 5, 2)


@pytest.mark.parametrize(
    "line, fault",
    [
        ("{", "no JSON object with question and answer"),
        ("[1]", "no JSON object"),
        ('{"question": "a"}', "no JSON object with question and answer"),
        ('{"question": 1, "answer": "2"}', "question and answer must be strings"),
        ('{"question": "a", "answer": "none"}', "no number in the answer"),
    ],
)
def test_a_bad_line_is_named(data: Path, line: str, fault: str):
    data.write_text(data.read_text() + line + "\n")
    with pytest.raises(EvalError, match=f"line 8: {fault}") as error:
        load(data)
    assert "\n" not in str(error.value)


def test_no_such_file(tmp_path: Path):
    with pytest.raises(EvalError, match="No such file"):
        load(tmp_path / "none.jsonl")


def test_no_network_says_how_to_get_the_data(tmp_path: Path, monkeypatch):
    def no_network(*arguments: object, **options: object):
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr(gsm8k, "SGLANG_CACHE", tmp_path / "test.jsonl")
    monkeypatch.setattr(httpx, "get", no_network)
    with pytest.raises(EvalError, match=r"Name or service.*https://.*--data") as error:
        load(None)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_sglangs_cache_is_used(tmp_path: Path, data: Path, monkeypatch):
    monkeypatch.setattr(gsm8k, "SGLANG_CACHE", data)
    monkeypatch.setattr(httpx, "get", lambda *a, **k: pytest.fail("downloaded"))
    assert len(load(None).rows) == len(QUESTIONS)

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specpack.evals.client import Answer, Failure
from specpack.evals.errors import EvalError
from specpack.evals.folder import ATTEMPTS, SETTING, differences, opened

ANSWER = Answer(3, (1, 2), "é", "stop", 4, 2, 0.5, 1.5, 1, 1, (0, 1))


def test_records_come_back_as_they_were(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        folder.append("a", ANSWER)
        folder.append("a", Failure(4, "HTTP 500"))
        assert folder.answers("a") == {3: ANSWER, 4: Failure(4, "HTTP 500")}


def test_a_later_line_replaces_an_earlier(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        folder.append("a", Failure(3, "HTTP 500"))
        folder.append("a", ANSWER)
        assert folder.answers("a") == {3: ANSWER}


@pytest.mark.parametrize("name", ["completions/a.jsonl", ATTEMPTS])
def test_a_line_cut_short_is_dropped_before_more_is_written(tmp_path: Path, name: str):
    with opened(tmp_path, {}) as folder:
        folder.append("a", ANSWER)
        folder.note("a", log="x", start=0)
    path = tmp_path / name
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:17])
    with opened(tmp_path, {}) as folder:
        assert path.read_bytes() == whole
        folder.append("a", Failure(4, "x"))
        assert set(folder.answers("a")) == {3, 4}


def test_a_damaged_line_is_an_error(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        folder.completions("a").write_text("{]\n{}\n")
        with pytest.raises(EvalError, match="is damaged"):
            folder.answers("a")


def test_an_error_is_over_once_the_server_starts_again(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        assert folder.error("a") is None
        folder.note("a", error="out of memory")
        assert folder.error("a") == "out of memory"
        folder.note("b", log="x", start=0)
        assert folder.error("a") == "out of memory"
        folder.note("a", log="x", start=0)
        assert folder.error("a") is None


def test_each_start_has_its_own_log(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        folder.new_log("a").touch()
        assert folder.new_log("a").name == "a-2.log"


def test_one_command_at_a_time(tmp_path: Path):
    with opened(tmp_path, {}):
        with pytest.raises(EvalError, match="another specpack eval"):
            with opened(tmp_path, {}):
                pass


def test_another_setting_is_refused_in_one_line(tmp_path: Path):
    with opened(tmp_path, {"runs": [{"flags": ("--tp", "1")}], "examples": 6}):
        pass
    kept = (tmp_path / SETTING).read_text()
    other = {"runs": [{"flags": ("--tp", "2")}], "examples": 6}
    with pytest.raises(
        EvalError, match=r'runs.0.flags.1 = "1", now it is "2"'
    ) as error:
        with opened(tmp_path, other):
            pass
    assert "\n" not in str(error.value)
    assert (tmp_path / SETTING).read_text() == kept


def test_differences_see_added_and_removed_names():
    found = list(differences({"a": 1, "b": 2}, {"b": 2, "c": 3}))
    assert sorted(found) == [("a", "1", "null"), ("c", "null", "3")]


def test_lines_have_sorted_keys(tmp_path: Path):
    with opened(tmp_path, {}) as folder:
        folder.append("a", ANSWER)
        (line,) = folder.completions("a").read_text().splitlines()
    assert list(json.loads(line)) == sorted(json.loads(line))

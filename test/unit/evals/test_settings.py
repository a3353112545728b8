"""What a run file may say, and the one line for each thing that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from specpack.evals.errors import EvalError
from specpack.evals.settings import from_file, from_table, plugins, server_flags

RUN = {"name": "a", "target": "org/model"}


def table(**values: object) -> dict[str, object]:
    return {"runs": [RUN]} | values


def test_defaults_are_those_of_the_published_figures():
    whole = from_table(table(), Path())
    assert (whole.examples, whole.max_tokens, whole.temperature) == (200, 512, 0)
    assert (whole.concurrency, whole.num_shots, whole.api) == (1, 5, "chat")


def test_a_run_adds_to_what_all_share():
    run = RUN | {"flags": ["--tp", "2"], "environment": {"B": "2"}}
    shared = {"flags": ["--device", "cpu"], "environment": {"A": "1", "B": "1"}}
    (found,) = from_table(table(runs=[run], reference="a", **shared), Path()).runs
    assert found.flags == ("--device", "cpu", "--tp", "2")
    assert found.environment == {"A": "1", "B": "2"}
    assert found.reference == "a"


def test_paths_start_at_the_files_folder(tmp_path: Path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "config.json").write_text("{}")
    path = tmp_path / "run.toml"
    path.write_text("data = 'd.jsonl'\n[[runs]]\ntarget = 'models/tiny'\n")
    whole = from_file(path)
    assert whole.runs[0].target == str(tmp_path / "models" / "tiny")
    assert whole.data == str(tmp_path / "d.jsonl")
    assert whole.runs[0].name == "tiny-specpack-none"


@pytest.mark.parametrize(
    "values, fault",
    [
        ({"runs": []}, r"no \[\[runs\]\]"),
        ({"runs": [3]}, r"no \[\[runs\]\]"),
        ({"shot_count": 2}, "unknown key shot_count"),
        ({"examples": "2"}, "examples must be a int, not '2'"),
        ({"examples": True}, "examples must be a int"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"num_shots": -1}, "cannot be negative"),
        ({"api": "completion"}, "api must be one of chat, generate"),
        ({"flags": "--tp 2"}, "flags must be a list of strings"),
        ({"environment": {"A": 1}}, "environment must be a table of strings"),
        ({"runs": [RUN, RUN]}, "two runs are called a"),
        ({"runs": [RUN | {"name": "a/b"}]}, "no file name"),
        ({"runs": [{"name": "a"}]}, "needs either a target or a url"),
        ({"runs": [RUN | {"url": "http://x"}]}, "needs either a target or a url"),
        ({"runs": [RUN | {"sglang": "fork"}]}, "must be stock or specpack"),
        ({"reference": "b"}, "its reference b is no run"),
        ({"runs": [RUN | {"target": "/none"}]}, "there is no checkpoint at /none"),
        ({"runs": [RUN | {"draft": "none"}]}, "there is no checkpoint at none"),
    ],
)
def test_what_cannot_be_done(values: dict[str, object], fault: str):
    with pytest.raises(EvalError, match=fault) as error:
        from_table(table(**values), Path())
    assert "\n" not in str(error.value)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path):
    with pytest.raises(EvalError, match="has no config.json"):
        from_table(table(runs=[RUN | {"target": str(tmp_path)}]), Path())


def test_a_missing_directory_is_no_name_on_the_hub(tmp_path: Path):
    (tmp_path / "build").mkdir()
    with pytest.raises(EvalError, match="no checkpoint at"):
        from_table(table(runs=[RUN | {"target": "build/tiny"}]), tmp_path)


def test_a_file_that_is_not_toml(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text("examples = \n")
    with pytest.raises(EvalError, match="is not TOML"):
        from_file(path)
    with pytest.raises(EvalError, match="No such file"):
        from_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    "branch, environment, names",
    [
        ("stock", {}, "none"),
        ("specpack", {}, "specpack"),
        ("stock", {"SGLANG_USE_CPU_ENGINE": "1"}, "cpu-reference"),
        ("specpack", {"SGLANG_USE_CPU_ENGINE": "1"}, "cpu-reference,specpack"),
    ],
)
def test_the_branch_is_the_plugins(branch: str, environment, names: str):
    (run,) = from_table(table(runs=[RUN | {"sglang": branch}]), Path()).runs
    assert plugins(run, environment) == names


def test_a_runs_own_flags_win_over_the_algorithms():
    one = RUN | {"algorithm": "NEXTN", "flags": ["--speculative-num-steps", "5"]}
    (run,) = from_table(table(runs=[one]), Path()).runs
    flags = server_flags(run)
    assert flags[:2] == ("--speculative-algorithm", "NEXTN")
    assert flags.index("3") < flags.index("5")


def test_a_draft_is_passed_on():
    one = RUN | {"algorithm": "DFLASH", "draft": "org/draft"}
    (run,) = from_table(table(runs=[one]), Path()).runs
    assert server_flags(run)[2:] == ("--speculative-draft-model-path", "org/draft")

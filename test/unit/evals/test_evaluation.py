"""The whole command on a fake server: what it writes, and what ends a row."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from specpack.evals import running
from specpack.evals.server import Launch, serve

NEXTN = {"algorithm": "NEXTN"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_plain_and_a_speculating_run(run_file, specpack_eval, out: Path, rows_of):
    path = run_file(plain={}, nextn=NEXTN | {"FAKE_SHIFT": "1"})
    assert specpack_eval(path, "--out", out) == 0
    rows = rows_of(out)
    assert rows["plain"]["accept_length"] is None
    assert rows["plain"]["accuracy"] == 1.0
    nextn = rows["nextn"]
    # The warm-up's window (1.00) was logged before the first question.
    assert (nextn["accept_length"], nextn["windows"]) == (3.0, 6)
    assert nextn["accept_length_per_request"] == 3.1
    assert nextn["accept_length_histogram"] == 3.0
    assert nextn["correct_draft_shares"] == [0.9, 0.9, 0.1, 0.1]
    assert 0 < nextn["equal"] < nextn["compared"] == 6
    assert (out / "accept_length.png").stat().st_size > 1000


def test_one_line_a_request(run_file, specpack_eval, out: Path, lines_of):
    specpack_eval(run_file(nextn=NEXTN), "--out", out)
    lines = lines_of(out / "completions" / "nextn.jsonl")
    assert [line["id"] for line in lines] == [2, 3, 4, 5, 6, 7]
    assert len(lines[0]["token_ids"]) == lines[0]["completion_tokens"] == 31
    assert lines[0]["spec_verify_ct"] == 10


def test_the_report_is_the_same_when_written_again(run_file, specpack_eval, out: Path):
    path = run_file(plain={}, nextn=NEXTN)
    specpack_eval(path, "--out", out)
    written = {p: p.read_bytes() for p in out.glob("report.*")}
    specpack_eval(path, "--out", out)
    assert {p: p.read_bytes() for p in out.glob("report.*")} == written
    assert len(list((out / "logs").iterdir())) == 2  # no server was started again
    keys = re.findall(r'^ "(\w+)":', (out / "report.json").read_text(), re.M)
    assert keys == sorted(keys) == ["rows", "setting", "starts"]


def test_the_report_says_how_it_was_made(run_file, specpack_eval, out: Path):
    specpack_eval(run_file(plain={}, nextn=NEXTN), "--out", out)
    text = (out / "report.md").read_text()
    for fact in ("- device: cpu", "- TP: 1", "- command: `", "temperature 0", "sha256"):
        assert fact in text
    assert "SGLANG_PLUGINS=specpack SGLANG_USE_CPU_ENGINE=0 python -m sglang" in text
    assert "comes from the prefill" in text
    assert "| 3.000 | 6/6 |" in text


def test_a_port_in_use(run_file, specpack_eval, out: Path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = run_file(head=f"port = {port}", plain={})
        assert specpack_eval(path, "--out", out) == 1
    assert f"plain fails: port {port} is in use" in capsys.readouterr().out


def test_failed_requests_are_counted_and_asked_again(
    run_file, specpack_eval, out: Path, capsys, rows_of
):
    path = run_file(nextn=NEXTN | {"FAKE_REFUSE_AT": "2,5"})
    assert specpack_eval(path, "--out", out) == 1
    assert "2 of 6 requests failed" in capsys.readouterr().out
    row = rows_of(out)["nextn"]
    assert (row["answered"], row["failed"], row["accuracy"]) == (4, 2, 1.0)
    report = (out / "report.md").read_text()
    assert '- nextn, request 3: HTTP 500: {"error": "no\\nroom"}' in report
    assert specpack_eval(path, "--out", out) == 0
    assert rows_of(out)["nextn"]["failed"] == 0


def test_a_server_that_refuses_everything_is_given_up(
    run_file, specpack_eval, out: Path, rows_of, monkeypatch
):
    monkeypatch.setattr(running, "HOPELESS", 3)
    path = run_file(plain={"FAKE_REFUSE_AT": "1,2,3,4,5,6"})
    assert specpack_eval(path, "--out", out) == 1
    assert "the first 3 requests failed" in rows_of(out)["plain"]["error"]


def test_a_server_that_crashes_ends_its_run_only(
    run_file, specpack_eval, out: Path, rows_of, lines_of
):
    path = run_file(plain={"FAKE_EXIT_AT": "3"}, nextn=NEXTN)
    assert specpack_eval(path, "--out", out) == 1
    rows = rows_of(out)
    assert rows["plain"]["result"] == "fails"
    assert "RuntimeError: the scheduler hit a wall" in rows["plain"]["error"]
    assert rows["plain"]["answered"] == 2
    assert (rows["nextn"]["equal"], rows["nextn"]["compared"]) == (2, 2)
    assert specpack_eval(path, "--out", out) == 0  # goes on with the third
    assert rows_of(out)["plain"]["answered"] == 6
    assert len(lines_of(out / "completions" / "plain.jsonl")) == 6


def test_a_server_that_never_gets_ready_is_quoted(
    run_file, specpack_eval, out: Path, capsys
):
    path = run_file(broken=NEXTN | {"FAKE_BROKEN": "out of memory"})
    assert specpack_eval(path, "--out", out) == 1
    printed = capsys.readouterr().out
    assert "ValueError: out of memory" in printed and "ServerArgs" not in printed


@pytest.mark.parametrize("text, status", [("no attribute", 0), ("another", 1)])
def test_a_run_that_must_fail(run_file, specpack_eval, out: Path, text, status):
    broken = NEXTN | {"fails": text, "FAKE_BROKEN": "no attribute weight"}
    assert specpack_eval(run_file(plain={}, broken=broken), "--out", out) == status


def test_a_run_that_must_fail_and_serves(run_file, specpack_eval, out: Path, rows_of):
    assert specpack_eval(run_file(plain={"fails": "wall"}), "--out", out) == 1
    assert "was to fail" in rows_of(out)["plain"]["faults"][0]


@pytest.mark.parametrize(
    "name", ["spec_verify_ct", "spec_correct_drafts_histogram", "completion_tokens"]
)
def test_a_missing_counter_is_an_error(
    run_file, specpack_eval, out: Path, name: str, rows_of
):
    path = run_file(nextn=NEXTN | {"FAKE_WITHOUT": name})
    assert specpack_eval(path, "--out", out) == 1
    row = rows_of(out)["nextn"]
    assert name in row["error"]
    assert row["accept_length_per_request"] is None


def test_a_log_without_a_window_is_a_fault(run_file, specpack_eval, out: Path, rows_of):
    path = run_file(nextn=NEXTN)
    specpack_eval(path, "--out", out)
    (out / "logs" / "nextn-1.log").write_text("")
    assert specpack_eval(path, "--out", out) == 1
    row = rows_of(out)["nextn"]
    assert row["accept_length"] is None
    assert "no decode-log window" in row["faults"][0]


def test_a_server_that_does_not_speculate(run_file, specpack_eval, out: Path):
    one = NEXTN | {"flags": ["--speculative-algorithm", ""]}
    path = run_file(nextn=one)
    assert specpack_eval(path, "--out", out) == 1


def test_another_setting_is_refused(run_file, specpack_eval, out: Path, capsys):
    specpack_eval(run_file(plain={}), "--out", out)
    path = run_file(head="max_tokens = 7", plain={})
    assert specpack_eval(path, "--out", out) == 2
    error = capsys.readouterr().err
    assert "begun with max_tokens = 512, now it is 7" in error
    assert error.count("\n") == 1


def test_raw_prompts_and_several_at_a_time(run_file, specpack_eval, out: Path, rows_of):
    path = run_file(head="api = 'generate'\nconcurrency = 3", plain={}, nextn=NEXTN)
    assert specpack_eval(path, "--out", out) == 0
    assert rows_of(out)["nextn"]["equal"] == 6


def test_options_in_place_of_a_file(
    data: Path, checkpoint: Path, environment, specpack_eval, out: Path, rows_of
):
    given = [f"--env={name}={value}" for name, value in environment.items()]
    asked = ["--data", data, "--examples", 3, "--num-shots", 1, *given]
    words = ["--target", checkpoint, "--algorithm", "NEXTN", *asked, "--out", out]
    assert specpack_eval(*words) == 0
    rows = rows_of(out)
    assert list(rows) == ["none", "NEXTN"]
    assert rows["NEXTN"]["reference"] == "none"


@pytest.mark.parametrize(
    "words, fault",
    [
        ([], "give either RUN.toml, --target or --url"),
        (["a.toml", "--target", "b"], "give either"),
        (["a.toml", "--examples", "3"], "--examples cannot change a.toml"),
        (["none.toml"], "none.toml cannot be read"),
        (["--target", "/none"], "there is no checkpoint at /none"),
        (["--target", "a/b", "--draft", "c/d"], "--draft needs --algorithm"),
        (["--target", "a/b", "--env", "X"], "write NAME=VALUE"),
        (["--target", "a/b", "--chat-template-kwargs", "1"], "write a JSON object"),
        (["compare", "one"], "compare takes two folders"),
    ],
)
def test_bad_input_is_one_line(specpack_eval, capsys, words: list[str], fault: str):
    assert specpack_eval(*words) == 2
    error = capsys.readouterr().err
    assert fault in error and error.count("\n") == 1


@pytest.fixture
def theirs(tmp_path: Path, environment):
    """A fake server that somebody else runs: its url and its log."""
    flags = ("--speculative-algorithm", "NEXTN")
    launch = Launch(tmp_path, flags, environment, sys.executable)
    with serve(launch, tmp_path / "theirs.log") as server:
        yield server


def test_a_running_server(theirs, data: Path, specpack_eval, out: Path, rows_of):
    asked = ["--data", data, "--examples", 4, "--num-shots", 1, "--out", out]
    words = ["--url", theirs.url, "--server-log", theirs.log, *asked]
    assert specpack_eval(*words) == 0
    row = rows_of(out)["server"]
    assert (row["speculation"], row["accept_length"], row["windows"]) == ("NEXTN", 3, 4)
    assert theirs.process.poll() is None
    (start,) = json.loads((out / "report.json").read_text())["starts"]["server"]
    assert start["provenance"]["versions"] == {"sglang": "0.5.23"}


def test_a_speculating_server_needs_its_log(
    theirs, data: Path, specpack_eval, out: Path, capsys
):
    asked = ["--data", data, "--examples", 4, "--num-shots", 1, "--out", out]
    assert specpack_eval("--url", theirs.url, *asked) == 2
    assert "pass --server-log FILE" in capsys.readouterr().err


def test_no_server_at_the_url(data: Path, specpack_eval, out: Path, capsys):
    asked = ["--data", data, "--examples", 4, "--num-shots", 1, "--out", out]
    assert specpack_eval("--url", "http://127.0.0.1:9", *asked) == 1
    assert "no server answers at http://127.0.0.1:9" in capsys.readouterr().out


def test_the_base_install_needs_neither_torch_nor_sglang(run_file, out: Path):
    """The fake server's `sglang` has no module besides `launch_server`."""
    main = (
        "import argparse, sys; from specpack.evals.cli import add_parser\n"
        "parser = argparse.ArgumentParser(); add_parser(parser.add_subparsers())\n"
        "arguments = parser.parse_args(); status = arguments.run(arguments)\n"
        "sys.exit(status or 'torch' in sys.modules or 'sglang' in sys.modules)"
    )
    words = ["eval", str(run_file(plain={})), "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", main, *words], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "report.json").read_text())["rows"]

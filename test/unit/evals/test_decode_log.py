"""The scheduler's windows, as SGLang 0.5.23 logs them."""

from __future__ import annotations

from pathlib import Path

from specpack.evals.decode_log import follow, windows, windows_of

LINE = (
    b"[2026-11-30 05:34:49] Decode batch, #running-req: 1, #full token: 265, full token "
    b"usage: 0.06, mamba num: 1, mamba usage: 0.25, accept len: 3.88, accept rate: 0.96, "
    b"cpu graph: False, gen throughput (token/s): 36.28, #queue-req: 0\n"
)
PLAIN = LINE.replace(b"accept len: 3.88, accept rate: 0.96, ", b"")


def test_every_window_counts():
    second = LINE.replace(b"3.88", b"12.00").replace(b"49]", b"52 DP0 TP0]")
    assert windows(LINE + b"other\n" + second) == [3.88, 12.0]


def test_a_server_without_speculation_has_none():
    assert windows(PLAIN * 3) == []


def test_dsparks_block_accept_len_is_another_quantity():
    line = LINE.replace(
        b"cpu graph", b"cap len: 4.00, block accept len: 5.10, cpu graph"
    )
    assert windows(line) == [3.88]
    assert windows(line.replace(b" accept len: 3.88,", b"")) == []


def test_the_text_of_a_completion_is_no_window():
    assert windows(b"Receive: text='accept len: 9.99'\n") == []
    assert windows(b"Decode batch, x\naccept len: 9.99\n") == []


def test_what_was_logged_before_the_start_is_left_out(tmp_path: Path):
    log = tmp_path / "log"
    log.write_bytes(LINE * 3)
    assert windows_of(log, len(LINE)) == [3.88, 3.88]


def test_a_followed_log_is_copied_from_its_present_end(tmp_path: Path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(LINE)
    follower = follow(source, copy)
    for _ in range(2):
        with source.open("ab") as opened:
            opened.write(LINE[:30])
        follower.pull()
        with source.open("ab") as opened:
            opened.write(LINE[30:])
    follower.pull()
    assert copy.read_bytes() == LINE * 2

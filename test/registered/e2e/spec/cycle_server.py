"""Servers over the checkpoints of `cycle_models`: start, complete, measure, stop."""

import contextlib
import json
import os
import tempfile
import urllib.request
from typing import Iterator, NamedTuple

import cycle_models
from sglang.srt.utils import kill_process_tree
from sglang.test.test_utils import (
    DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
    DEFAULT_URL_FOR_TEST,
    CustomTestCase,
    popen_launch_server,
)

NEW_TOKENS = 64
FLAGS = (
    "--skip-tokenizer-init",
    "--disable-radix-cache",
    *("--max-running-requests", "4", "--max-total-tokens", "8192"),
)
NEXTN = (
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


class Completion(NamedTuple):
    """One answer; the counters are 0 on a server without speculation."""

    token_ids: list
    num_correct_drafts: int
    spec_verify_ct: int


def dflash(draft: str, *flags: str) -> tuple:
    """The flags that speculate with a DFLASH draft."""
    return (
        *("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft),
        *("--speculative-dflash-block-size", str(cycle_models.BLOCK), *flags),
    )


@contextlib.contextmanager
def serve(model: str, *flags: str) -> Iterator[str]:
    """Run a server for the duration of the block and give its URL."""
    process = popen_launch_server(
        model,
        DEFAULT_URL_FOR_TEST,
        timeout=DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH,
        other_args=[*FLAGS, *flags],
    )
    try:
        yield DEFAULT_URL_FOR_TEST
    finally:
        kill_process_tree(process.pid)


def complete(url: str, input_ids: list) -> Completion:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"{url}/generate",
        json.dumps({"input_ids": input_ids, "sampling_params": sampling}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.load(response)
    meta = answer["meta_info"]
    return Completion(
        answer["output_ids"],
        meta.get("spec_num_correct_drafts", 0),
        meta.get("spec_verify_ct", 0),
    )


def completions(model: str, *flags: str) -> list[Completion]:
    """What a server with these flags answers to each prompt."""
    with serve(model, *flags) as url:
        return [complete(url, prompt) for prompt in cycle_models.prompts()]


def accept_length(answers: list[Completion]) -> float:
    """Tokens a verify step yields, bonus included, over all answers."""
    steps = sum(answer.spec_verify_ct for answer in answers)
    return 1 + sum(answer.num_correct_drafts for answer in answers) / steps


class CycleTestCase(CustomTestCase):
    """Compares one target's speculative completions with its plain ones."""

    write_options: dict = {}  # of the target
    flags: tuple = ()  # of every server

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        target = os.path.join(cls.folder, "target")
        cls.target = cycle_models.write_target(target, **cls.write_options)
        cls.plain = completions(cls.target, *cls.flags)

    @classmethod
    def write_draft(cls, name: str, packed: bool = False) -> str:
        return cycle_models.write_draft(os.path.join(cls.folder, name), packed)

    def check_plain(self) -> None:
        """The target goes round the cycles that it was written for."""
        for prompt, answer in zip(cycle_models.prompts(), self.plain):
            expected = [
                cycle_models.following(prompt[-1], n + 1) for n in range(NEW_TOKENS)
            ]
            self.assertEqual(answer.token_ids, expected)

    def check_speculation(self, at_least: float, *flags: str) -> None:
        """The plain completions, at least so many tokens a verify step."""
        answers = completions(self.target, *self.flags, *flags)
        length = accept_length(answers)
        print(f"{self.id()}: accept length {length:.2f}", flush=True)
        self.assertEqual(
            [answer.token_ids for answer in answers],
            [answer.token_ids for answer in self.plain],
        )
        self.assertGreaterEqual(length, at_least)

"""A server that answers as SGLang's does, with what FAKE_… variables tell it to do.

Every completion is made of the prompt's digest. With speculation each verify step has
two correct drafts, and one token comes from the prefill.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

STEPS = 10  # verify steps of a completion
DRAFTS = 2  # correct in each


def setting(name: str, default: str = "") -> str:
    return os.environ.get(f"FAKE_{name}", default)


def count(name: str) -> int:
    """How often this was called, in any process, in the folder FAKE_STATE."""
    path = Path(setting("STATE", ".")) / name
    with path.open("a") as opened:
        opened.write(".")
    return path.stat().st_size


def completion(prompt: str) -> tuple[list[int], str]:
    """Token ids, and an answer that is right where FAKE_RIGHT divides the number."""
    length = 1 + STEPS * (DRAFTS + 1)
    ids = [b for b in sha256(prompt.encode()).digest()[:length]]
    if int(setting("SHIFT", "0")) and ids[0] % 2:
        ids[7] += 1
    asked = re.findall(r"What is (\d+)\?", prompt)[-1]
    return ids, f" So it is 1,00{asked}."


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass

    def reply(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        flags = self.server.flags
        self.reply(
            {
                "version": "0.5.23",
                "model_path": flags.model_path,
                "device": "cpu",
                "tp_size": 1,
                "speculative_algorithm": flags.speculative_algorithm,
            }
        )

    def do_POST(self) -> None:
        request = json.loads(
            self.rfile.read(int(self.headers["Content-Length"])).decode()
        )
        number = count("requests")
        if number == int(setting("EXIT_AT", "0")):
            print("RuntimeError: the scheduler hit a wall", flush=True)
            os._exit(1)
        if number in map(int, filter(None, setting("REFUSE_AT").split(","))):
            return self.reply({"error": "no\nroom"}, 500)
        time.sleep(float(setting("DELAY", "0")))
        if "messages" in request:
            ids, text, meta = self.completed(request["messages"][0]["content"])
            message = {"role": "assistant", "content": text}
            choice = {"message": message, "response_token_ids": ids, "meta_info": meta}
            return self.reply({"choices": [choice]})
        ids, text, meta = self.completed(request["text"])
        self.reply({"text": text, "output_ids": ids, "meta_info": meta})

    def completed(self, prompt: str) -> tuple[list[int], str, dict]:
        ids, text = completion(prompt)
        meta = {
            "prompt_tokens": 9,
            "completion_tokens": len(ids),
            "finish_reason": {"type": "stop"},
        }
        if self.server.flags.speculative_algorithm:
            print("Decode batch, #running-req: 1, accept len: 3.00, x: 1", flush=True)
            meta["spec_verify_ct"] = STEPS
            meta["spec_num_correct_drafts"] = STEPS * DRAFTS
            meta["spec_correct_drafts_histogram"] = [1, 0, STEPS - 2, 0, 1]
        meta.pop(setting("WITHOUT"), None)
        return ids, text, meta


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path")
    parser.add_argument("--port", type=int)
    parser.add_argument("--speculative-algorithm")
    flags, _ = parser.parse_known_args()
    count("starts")
    if setting("BROKEN"):
        sys.exit(f"server_args=ServerArgs(...)\nValueError: {setting('BROKEN')}")
    server = ThreadingHTTPServer(("127.0.0.1", flags.port), Handler)
    server.flags = flags
    print("Decode batch, #running-req: 1, accept len: 1.00, warm-up", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()

"""One request to a server: the completion and every counter SGLang keeps of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from specpack.evals.gsm8k import Problem
from specpack.evals.server import STOP_SECONDS, ServerError

STOP = ("Question", "Assistant:", "<|separator|>")
"""Where SGLang's evaluation ends a completion that no chat template frames."""
DYING_SECONDS = 1.0
"""A server that answers an error and is dying takes no longer to be gone."""
SERVER_FIELDS = (
    *("version", "model_path", "device", "tp_size", "decode_log_interval"),
    *("speculative_algorithm", "speculative_draft_model_path", "chat_template"),
    *("speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "disable_overlap_schedule"),
)
"""What of ``/server_info`` says which server this is."""


@dataclass(frozen=True)
class Answer:
    """A finished request. ``began`` is Unix time; the ``spec_`` counters are None on a
    server without speculation, and 0 where the prefill alone ended the request."""

    id: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    began: float
    seconds: float
    spec_verify_ct: int | None = None
    spec_num_correct_drafts: int | None = None
    spec_correct_drafts_histogram: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Failure:
    """A request that the server refused or did not answer in time."""

    id: int
    error: str


class Endpoint(Protocol):
    """A server to ask; ``check_alive`` raises ServerError where it is gone."""

    url: str

    def check_alive(self) -> None: ...


@dataclass(frozen=True)
class Remote:
    """A server that somebody else runs."""

    url: str

    def check_alive(self) -> None:
        try:
            httpx.get(f"{self.url}/health", timeout=30)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"no server answers at {self.url} ({reason})") from None


@dataclass(frozen=True)
class Sampling:
    """How a completion is asked for."""

    api: str
    max_tokens: int
    temperature: float
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def server_info(endpoint: Endpoint) -> dict[str, Any]:
    """The server's own account of itself, without what another start changes.

    Raises:
        ServerError: it gives none, or does not say whether it speculates.
    """
    try:
        response = httpx.get(f"{endpoint.url}/server_info", timeout=60)
        info = response.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServerError(f"{endpoint.url}/server_info: {error!r}") from None
    if "speculative_algorithm" not in info:
        raise ServerError("/server_info has no speculative_algorithm: is it SGLang?")
    return {name: info.get(name) for name in SERVER_FIELDS}


def ask(
    client: httpx.Client,
    endpoint: Endpoint,
    problem: Problem,
    sampling: Sampling,
    speculates: bool,
) -> Answer | Failure:
    """The answer to one problem, or why there is none.

    Raises:
        ServerError: the server is gone, or its answer lacks a field.
    """
    began, start = time.time(), time.perf_counter()
    path, request = REQUESTS[sampling.api](problem.prompt, sampling)
    try:
        response = client.post(f"{endpoint.url}{path}", json=request)
    except httpx.TransportError as error:
        require_alive(endpoint)
        return Failure(problem.id, f"no answer: {error!r}")
    seconds = time.perf_counter() - start
    if response.status_code != 200:
        if response.status_code >= 500:
            require_alive(endpoint, DYING_SECONDS)
        said = " ".join(response.text.split())[:300]
        return Failure(problem.id, f"HTTP {response.status_code}: {said}")
    try:
        fields = READERS[sampling.api](response.json())
        return Answer(
            id=problem.id, began=began, seconds=seconds, **counted(fields, speculates)
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerError(
            f"the answer to request {problem.id} lacks a field: {error!r}"
        ) from None


def chat_request(prompt: str, sampling: Sampling) -> tuple[str, dict[str, Any]]:
    request = {
        "model": "default",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "max_tokens": sampling.max_tokens,
        "return_meta_info": True,
        "return_token_ids": True,
    }
    if sampling.chat_template_kwargs:
        request["chat_template_kwargs"] = dict(sampling.chat_template_kwargs)
    return "/v1/chat/completions", request


def generate_request(prompt: str, sampling: Sampling) -> tuple[str, dict[str, Any]]:
    parameters = {
        "temperature": sampling.temperature,
        "top_p": 1.0,
        "max_new_tokens": sampling.max_tokens,
        "stop": list(STOP),
    }
    return "/generate", {"text": prompt, "sampling_params": parameters}


def chat_fields(response: Mapping[str, Any]) -> tuple[list[int], str, dict[str, Any]]:
    choice = response["choices"][0]
    text = choice["message"]["content"] or ""
    return choice["response_token_ids"], text, choice["meta_info"]


def generate_fields(
    response: Mapping[str, Any],
) -> tuple[list[int], str, dict[str, Any]]:
    return response["output_ids"], response["text"], response["meta_info"]


REQUESTS = {"chat": chat_request, "generate": generate_request}
READERS = {"chat": chat_fields, "generate": generate_fields}


def counted(
    fields: tuple[list[int], str, dict[str, Any]], speculates: bool
) -> dict[str, Any]:
    """An answer's fields; KeyError names a counter that the server did not send."""
    token_ids, text, meta = fields
    found = {
        "token_ids": tuple(token_ids),
        "text": text,
        "finish_reason": finish_reason(meta),
        "prompt_tokens": meta["prompt_tokens"],
        "completion_tokens": meta["completion_tokens"],
    }
    if not speculates:
        return found
    # SGLang leaves the counters out of a request that took no verify step.
    if meta["completion_tokens"] <= 1 and "spec_verify_ct" not in meta:
        return found | dict(zip(SPEC_FIELDS, (0, 0, ()), strict=True))
    histogram = tuple(meta["spec_correct_drafts_histogram"])
    counters = (meta["spec_verify_ct"], meta["spec_num_correct_drafts"], histogram)
    return found | dict(zip(SPEC_FIELDS, counters, strict=True))


SPEC_FIELDS = (
    *("spec_verify_ct", "spec_num_correct_drafts"),
    "spec_correct_drafts_histogram",
)


def finish_reason(meta: Mapping[str, Any]) -> str:
    reason = meta["finish_reason"]
    return reason["type"] if isinstance(reason, Mapping) else str(reason)


def require_alive(endpoint: Endpoint, seconds: float = STOP_SECONDS) -> None:
    """Raise if the server is gone; one that dropped a connection may be dying."""
    deadline = time.monotonic() + seconds
    endpoint.check_alive()
    while time.monotonic() < deadline:
        time.sleep(0.2)
        endpoint.check_alive()

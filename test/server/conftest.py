"""Real CPU servers for the tests of this folder; they share the demo's targets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path

import pytest

from specpack.evals.server import Launch, Server, serve
from specpack.evals.settings import Run, server_flags

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmark"), str(Path(__file__).parent)]
import matrix  # noqa: E402  (a script, not a package)
from matrix import problems  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """Two-step problems that the target was not trained on, with 0 to 5 shots."""
    shots = list(islice(problems.stream(2, held_out=False), 5))
    asked = islice(problems.stream(3, held_out=True, steps=2), 16)
    return [problems.prompt(p.question, shots[: i % 6]) for i, p in enumerate(asked)]


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory):
    """Start a server: ``with start(model, "specpack", "NEXTN", *flags) as server``."""
    logs = tmp_path_factory.mktemp("server-logs")

    def start(
        model: Path, sglang: str, speculation: str, *flags: str, **environment: str
    ) -> AbstractContextManager[Server]:
        launch = Launch(
            model,
            (*matrix.CPU_FLAGS, *server_flags(Run(algorithm=speculation)), *flags),
            matrix.environment(sglang) | environment,
        )
        return serve(launch, logs / f"{len(list(logs.iterdir()))}.log")

    return start


@pytest.fixture(scope="session")
def packed_target() -> Path:
    return matrix.target_path("w8a16-packed")


@pytest.fixture(scope="session")
def dense_target() -> Path:
    return matrix.target_path("bf16")


@pytest.fixture(scope="module")
def packed_nextn(start, packed_target: Path) -> Iterator[Server]:
    with start(packed_target, "specpack", "NEXTN") as server:
        yield server

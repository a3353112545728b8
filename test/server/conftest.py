"""Real CPU servers for the tests of this folder; they share the demo's targets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from specpack.evals.server import Launch, Server, serve

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmark"), str(Path(__file__).parent)]
import demo  # noqa: E402  (a script, not a package)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return demo.held_out_prompts(16)


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory):
    """Start a server: ``with start(model, "specpack", "NEXTN", *flags) as server``."""
    logs = tmp_path_factory.mktemp("server-logs")

    def start(
        model: Path, sglang: str, speculation: str, *flags: str, **environment: str
    ) -> AbstractContextManager[Server]:
        launch = Launch(
            model,
            (*demo.CPU_FLAGS, *demo.SPECULATION[speculation], *flags),
            demo.environment(sglang) | environment,
        )
        return serve(launch, logs / f"{len(list(logs.iterdir()))}.log")

    return start


@pytest.fixture(scope="session")
def packed_target() -> Path:
    return demo.target_path("w8a16-packed")


@pytest.fixture(scope="session")
def dense_target() -> Path:
    return demo.target_path("bf16")


@pytest.fixture(scope="module")
def packed_nextn(start, packed_target: Path) -> Iterator[Server]:
    with start(packed_target, "specpack", "NEXTN") as server:
        yield server

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specpack.recipes import environment
from specpack.recipes.schemes import QuantizeError

ROOT = Path(__file__).resolve().parents[3]


def test_the_requirements_file_has_the_same_pins() -> None:
    lines = (ROOT / "requirements" / "quantize.txt").read_text().splitlines()
    assert [line for line in lines if line[0] != "#"] == list(environment.PINS)


def test_in_a_checkout_the_environment_stands_at_its_root() -> None:
    assert environment.default_home() == ROOT / ".venv-quantize"


def test_an_installed_package_uses_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed = tmp_path / "site-packages" / "specpack" / "recipes" / "environment.py"
    monkeypatch.setattr(environment, "__file__", str(installed))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert environment.default_home() == tmp_path / "specpack" / ".venv-quantize"


@pytest.mark.parametrize(
    "python, words",
    [("/nowhere/python", "is not a Python"), (sys.executable, "wrong packages")],
)
def test_a_named_interpreter_is_checked_and_never_changed(
    monkeypatch: pytest.MonkeyPatch, python: str, words: str
) -> None:
    monkeypatch.setenv(environment.VARIABLE, python)
    monkeypatch.setattr(environment, "_make", lambda home: pytest.fail("made it"))
    with pytest.raises(QuantizeError, match=words) as caught:
        environment.quantize_python()
    assert "pip install llmcompressor==" in str(caught.value)


def test_one_that_cannot_be_made_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / ".venv-quantize"
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    monkeypatch.setattr(environment, "default_home", lambda: home)
    with pytest.raises(QuantizeError, match="make it yourself with") as caught:
        environment.quantize_python()
    assert "\n" not in str(caught.value)

"""All or nothing: what becomes of a series on a library that has changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from specpack.seams import CONTINUE, Addition, Attribute, Guard, Patch, apply
from specpack.seams.verify import verify

STOCK = """
    def broken(x):
        return x - 1

    def fine(x):
        return x

    class Model:
        limit = 4
"""


def fixed_up(x: int) -> Any:
    return x + 1 if x == 1 else CONTINUE


def untouched(x: int) -> Any:
    return "patched" if x == 1 else CONTINUE


@pytest.fixture
def series(library: Any, never: Callable[[], bool]) -> Callable[..., list[Patch]]:
    """A series of two patches verified on the stock library."""
    library.write("model", STOCK)

    def guard(name: str, function: Any) -> Guard:
        return Guard(
            target=library.target(f"model:{name}"),
            function=function,
            fingerprints=library.prints(f"model:{name}"),
        )

    seams = {"broken": guard("broken", fixed_up), "fine": guard("fine", untouched)}

    def build(
        probe: Callable[[], bool] = never, requires: tuple[str, ...] = ()
    ) -> list[Patch]:
        texts = {"symptom": "", "upstream": "#1", "removal": ""}
        first = Patch(name="first", probe=probe, seams=(seams["broken"],), **texts)
        second = Patch(
            name="second",
            probe=never,
            seams=(seams["fine"],),
            requires=requires,
            **texts,
        )
        return [first, second]

    return build


def alter(library: Any, old: str = "x - 1", new: str = "x - 2") -> None:
    library.write("model", STOCK.replace(old, new))


def results(library: Any) -> tuple[Any, Any]:
    module = library.load("model")
    return module.broken(1), module.fine(1)


def test_what_was_verified_applies_and_no_probe_runs(library: Any, series: Any) -> None:
    apply(series())
    assert results(library) == (2, "patched")


def test_an_altered_copy_is_refused_whole_with_the_seam_named(
    library: Any, series: Any
) -> None:
    alter(library)
    with pytest.raises(SystemExit) as refusal:
        apply(series(probe=lambda: False), plugin="plug")
    paragraph = str(refusal.value)
    for needed in (
        library.target("model:broken"),
        "(patch first)",
        "SGLang 9.9.9",
        "9.9.8",
        "SGLANG_PLUGINS=none",
        "SPECPACK_ON_DRIFT=skip",
        "SPECPACK_ON_DRIFT=apply",
    ):
        assert needed in paragraph
    assert "\n" not in paragraph and paragraph.startswith("plug ")
    assert results(library) == (-1, 1)


def test_a_fix_already_there_makes_the_patch_not_needed(
    library: Any, series: Any, caplog: pytest.LogCaptureFixture
) -> None:
    alter(library, new="x + 10")
    probe = lambda: library.load("model").broken(1) == 11  # noqa: E731
    with caplog.at_level(logging.WARNING, "specpack"):
        verdicts = apply(series(probe=probe))
    assert [verdict.state for verdict in verdicts] == ["not needed", "applies"]
    assert "first is not needed" in caplog.text
    assert results(library) == (11, "patched")


def test_a_probe_that_fails_counts_as_drift_and_is_quoted(
    library: Any, series: Any
) -> None:
    alter(library)

    def probe() -> bool:
        raise KeyError("no such thing")

    with pytest.raises(SystemExit, match="its probe failed with KeyError"):
        apply(series(probe=probe))


def test_on_drift_skip_leaves_out_what_drifted(
    library: Any, series: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(library)
    monkeypatch.setenv("SPECPACK_ON_DRIFT", "skip")
    verdicts = apply(series(probe=lambda: False))
    assert [verdict.state for verdict in verdicts] == ["left out", "applies"]
    assert results(library) == (-1, "patched")


def test_on_drift_skip_leaves_out_what_requires_it_too(
    library: Any, series: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(library)
    monkeypatch.setenv("SPECPACK_ON_DRIFT", "skip")
    verdicts = apply(series(probe=lambda: False, requires=("first",)))
    assert [verdict.state for verdict in verdicts] == ["left out", "left out"]
    assert verdicts[1].note == "requires first"
    assert results(library) == (-1, 1)


def test_on_drift_apply_applies_a_changed_body(
    library: Any, series: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alter(library)
    monkeypatch.setenv("SPECPACK_ON_DRIFT", "apply")
    apply(series(probe=lambda: False, requires=("first",)))
    assert results(library) == (2, "patched")


@pytest.mark.parametrize(
    "old, new, reason",
    [
        ("def broken(x)", "def renamed(x)", "does not exist"),
        ("def broken(x)", "def broken(x, y=0)", r"takes \(x, y=0\), not \(x\)"),
    ],
)
def test_on_drift_apply_still_refuses_what_cannot_attach(
    library: Any,
    series: Any,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    reason: str,
) -> None:
    alter(library, old, new)
    monkeypatch.setenv("SPECPACK_ON_DRIFT", "apply")
    with pytest.raises(SystemExit, match=reason):
        apply(series(probe=lambda: False))
    assert library.load("model").fine(1) == 1


def test_an_unknown_policy_is_refused(
    series: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPACK_ON_DRIFT", "ignore")
    with pytest.raises(SystemExit, match="'ignore', not apply or skip"):
        apply(series())


def test_a_patch_needs_no_patch_that_is_already_upstream(
    library: Any, series: Any
) -> None:
    alter(library, new="x + 10")
    verdicts = apply(series(probe=lambda: True, requires=("first",)))
    assert [verdict.state for verdict in verdicts] == ["not needed", "applies"]


def test_a_patch_must_follow_what_it_requires(library: Any, series: Any) -> None:
    with pytest.raises(ValueError, match="requires .*first"):
        verify(reversed(series(requires=("first",))), library.tree)


@pytest.mark.parametrize(
    "seam, reason",
    [
        (("Addition", "model:fine"), "exists already"),
        (("Addition", "model:Gone.method"), "a class that this release does not have"),
        (("Addition", "gone:name"), "a module that this release does not have"),
        (("Attribute", "model:Model.limit", "5"), "is 4 here, not 5"),
        (("Attribute", "model:Model.limit"), "exists already"),
        (("Attribute", "model:Model.other", "5"), "does not exist"),
    ],
)
def test_other_seams_drift_too(library: Any, seam: Any, reason: str) -> None:
    library.write("model", STOCK)
    kind, place, *expected = seam
    target = library.target(place)
    if kind == "Addition":
        drifting: Any = Addition(target=target, function=fixed_up)
    elif expected:
        drifting = Attribute(target=target, value=0, expected=expected[0])
    else:
        drifting = Attribute(target=target, value=0)
    patch = Patch(
        name="it",
        symptom="",
        upstream="",
        removal="",
        probe=lambda: False,
        seams=(drifting,),
    )
    (verdict,) = verify([patch], library.tree)
    assert verdict.state == "drifted"
    assert reason in str(verdict.problems[0])


def test_an_importer_that_imports_the_name_no_more_is_drift(library: Any) -> None:
    library.write("model", STOCK)
    library.write("user", "from LIBRARY import model\n")
    seam = Guard(
        target=library.target("model:fine"),
        function=untouched,
        fingerprints=library.prints("model:fine"),
        importers=(library.target("user"),),
    )
    patch = Patch(
        name="it",
        symptom="",
        upstream="",
        removal="",
        probe=lambda: False,
        seams=(seam,),
    )
    with pytest.raises(SystemExit, match="no longer imported by name in .*user"):
        apply([patch])

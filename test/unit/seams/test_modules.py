"""A file of ours as a module of the library's."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specpack.seams import Guard, NewModule, NotAttached, Patch, apply
from specpack.seams.modules import NewModuleFinder, source_file
from specpack.seams.verify import verify

AUDIT = """
import builtins

builtins.executions = getattr(builtins, "executions", 0) + 1


class Report:
    pass
"""


@pytest.fixture
def ours(library: Any, tmp_path: Path) -> Iterator[str]:
    """The name of a module of ours that counts its executions."""
    package = f"ours_{library.name}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").touch()
    (tmp_path / package / "audit.py").write_text(AUDIT)
    yield f"{package}.audit"
    vars(sys.modules["builtins"]).pop("executions", None)
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


@pytest.fixture
def patch(library: Any, ours: str, never: Callable[[], bool]) -> Patch:
    return make_patch(NewModule(target=library.target("audit"), source=ours), never)


def make_patch(seam: Any, probe: Callable[[], bool], name: str = "audit") -> Patch:
    return Patch(
        name=name, symptom="", upstream="", removal="", probe=probe, seams=(seam,)
    )


def executions() -> int:
    return getattr(sys.modules["builtins"], "executions", 0)


def test_it_is_our_file_under_the_librarys_name(
    library: Any, patch: Patch, tmp_path: Path
) -> None:
    apply([patch])
    module = library.load("audit")
    assert module.__name__ == library.target("audit")
    assert module.__package__ == library.name
    assert Path(module.__file__).parent.parent == tmp_path
    assert module is sys.modules[library.name].audit


def test_it_can_be_imported_from_its_package(library: Any, patch: Patch) -> None:
    library.write("user", "from LIBRARY import audit\n")
    apply([patch])
    assert library.load("user").audit is library.load("audit")


def test_nothing_is_imported_before_somebody_asks(
    library: Any, ours: str, patch: Patch
) -> None:
    apply([patch])
    top = ours.partition(".")[0]
    assert not {library.name, top, ours}.intersection(sys.modules)
    library.load("audit")
    assert ours not in sys.modules


def test_it_is_executed_once_however_often_it_is_applied(
    library: Any, patch: Patch
) -> None:
    apply([patch])
    first = library.load("audit")
    apply([patch])
    assert library.load("audit") is first and executions() == 1
    assert sys.meta_path.count(NewModuleFinder) == 1


def test_its_classes_are_pickled_under_the_librarys_name(
    library: Any, patch: Patch
) -> None:
    apply([patch])
    report = library.load("audit").Report
    pickled = pickle.dumps(report)
    assert library.target("audit").encode() in pickled
    assert pickle.loads(pickled) is report


def test_other_modules_that_do_not_exist_stay_so(library: Any, patch: Patch) -> None:
    apply([patch])
    with pytest.raises(ModuleNotFoundError):
        library.load("audits")


def test_one_that_is_there_already_is_drift(library: Any, ours: str) -> None:
    library.write("audit", "theirs = True\n")
    seam = NewModule(target=library.target("audit"), source=ours)
    with pytest.raises(SystemExit, match="audit exists already in this release"):
        apply([make_patch(seam, lambda: False)])
    assert library.load("audit").theirs


def test_one_that_is_there_already_may_be_the_fix(library: Any, ours: str) -> None:
    library.write("audit", "theirs = True\n")
    seam = NewModule(target=library.target("audit"), source=ours)
    (verdict,) = apply([make_patch(seam, lambda: library.load("audit").theirs)])
    assert verdict.state == "not needed"
    assert library.load("audit").theirs


def test_a_package_that_is_gone_is_drift(library: Any, ours: str) -> None:
    seam = NewModule(target=library.target("gone.audit"), source=ours)
    (verdict,) = verify([make_patch(seam, lambda: False)], library.tree)
    assert verdict.state == "drifted"
    assert "a package that this release does not have" in str(verdict.problems[0])


def test_a_package_needs_no_init_file(library: Any, ours: str) -> None:
    (library.root / "spaced").mkdir()
    seam = NewModule(target=library.target("spaced.audit"), source=ours)
    apply([make_patch(seam, lambda: False)])
    assert library.load("spaced.audit").Report


def test_a_module_of_that_name_from_elsewhere_is_refused(
    library: Any, patch: Patch
) -> None:
    library.write("audit", "")
    library.load("audit")
    (library.root / "audit.py").unlink()
    with pytest.raises(NotAttached, match="audit is not ours"):
        apply([patch])


def test_a_guard_finds_it_when_it_runs(
    library: Any, ours: str, never: Callable[[], bool]
) -> None:
    library.write("model", "def double(x):\n    return 2 * x\n")
    name = library.target("audit")

    def double(x: int) -> Any:
        return importlib.import_module(name).Report

    guard = Guard(
        target=library.target("model:double"),
        function=double,
        fingerprints=library.prints("model:double"),
    )
    new = NewModule(target=name, source=ours)
    apply([make_patch(guard, never), make_patch(new, never, name="new")])
    assert library.load("model").double(2) is library.load("audit").Report


def test_a_file_that_is_missing_is_named(library: Any, ours: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"{ours}s"):
        source_file(f"{ours}s")

"""Each kind of seam live, through `apply`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specpack.seams import (
    CONTINUE,
    Addition,
    Around,
    Attribute,
    Guard,
    NotAttached,
    Patch,
    Replace,
    apply,
    original,
)

MODEL = """
    def double(x, by=2):
        return x * by

    class Model:
        limit = 4

        def __init__(self, base=1):
            self.base = base

        def add(self, x):
            return self.base + x

        @classmethod
        def make(cls, base):
            return cls(base)

        @staticmethod
        def half(x):
            return x / 2

        @property
        def size(self):
            return self.base

        def load(self, weights, strict=True):
            return [name for name in weights]
"""


def small_double(x: int, by: int = 2) -> Any:
    if x < 10:
        return None
    return CONTINUE


def patch(*seams: Any, name: str = "one", **fields: Any) -> Patch:
    fields.setdefault("probe", lambda: False)
    return Patch(
        name=name, symptom="", upstream="#1", removal="never", seams=seams, **fields
    )


def guard(library: Any, place: str, function: Any, **fields: Any) -> Guard:
    return Guard(
        target=library.target(place),
        function=function,
        fingerprints=library.prints(place),
        **fields,
    )


@pytest.fixture
def model(library: Any) -> Any:
    library.write("model", MODEL)
    library.write("user", "from LIBRARY.model import double\n")
    library.write("alias", "from LIBRARY.model import double as twice\n")
    return library


def test_a_guard_answers_or_lets_the_original_run(model: Any) -> None:
    apply([patch(guard(model, "model:double", small_double))])
    double = model.load("model").double
    assert double(3) is None
    assert double(10) == 20
    assert double(10, by=3) == 30


def test_a_seam_attaches_only_when_its_module_is_imported(model: Any) -> None:
    apply([patch(guard(model, "model:double", small_double))])
    assert not model.is_loaded("model")


def test_a_module_imported_before_is_patched_at_once_with_its_importers(
    model: Any,
) -> None:
    user, alias = model.load("user"), model.load("alias")
    importers = (model.target("user"), model.target("alias:twice"))
    apply([patch(guard(model, "model:double", small_double, importers=importers))])
    assert user.double is alias.twice is model.load("model").double
    assert user.double(3) is None


def test_an_importer_imported_later_is_ours_too(model: Any) -> None:
    importers = (model.target("user"),)
    apply([patch(guard(model, "model:double", small_double, importers=importers))])
    assert model.load("user").double(3) is None


def test_two_guards_on_one_function_reach_every_importer(model: Any) -> None:
    user = model.load("user")
    importers = (model.target("user"),)

    def large(x: int, by: int = 2) -> Any:
        return "large" if x > 100 else CONTINUE

    first = guard(model, "model:double", small_double, importers=importers)
    second = guard(model, "model:double", large, importers=importers)
    apply([patch(first), patch(second, name="two")])
    assert [user.double(x) for x in (3, 20, 101)] == [None, 40, "large"]


def test_methods_of_every_kind_can_be_guarded(model: Any) -> None:
    def add(self: Any, x: int) -> Any:
        return self.base if x == 0 else CONTINUE

    def make(cls: Any, base: int) -> Any:
        return cls if base == 0 else CONTINUE

    def half(x: int) -> Any:
        return 0 if x == 1 else CONTINUE

    def size(self: Any) -> Any:
        return -1 if self.base == 5 else CONTINUE

    functions = {"add": add, "make": make, "half": half, "size": size}
    apply([patch(*(guard(model, f"model:Model.{n}", f) for n, f in functions.items()))])
    Model = model.load("model").Model
    assert (Model(7).add(0), Model(7).add(1)) == (7, 8)
    assert (Model.make(0), Model.make(2).base) == (Model, 2)
    assert (Model.half(1), Model(7).half(4)) == (0, 2)
    assert (Model(5).size, Model(6).size) == (-1, 6)


def test_around_replaces_arguments_and_the_result(model: Any) -> None:
    def before(self: Any, weights: Any, strict: bool = True) -> dict[str, Any]:
        return {"weights": ["new", *weights]}

    def after(result: Any, self: Any, weights: Any, strict: bool = True) -> Any:
        return result, weights, strict

    place = "model:Model.load"
    seam = Around(
        target=model.target(place),
        before=before,
        after=after,
        fingerprints=model.prints(place),
    )
    apply([patch(seam)])
    loaded = model.load("model").Model().load(["old"], strict=False)
    assert loaded == (["new", "old"], ["new", "old"], False)


def test_around_leaves_an_iterator_to_be_consumed_by_the_original(model: Any) -> None:
    seen: list[str] = []

    def before(self: Any, weights: Any, strict: bool = True) -> dict[str, Any]:
        def renamed() -> Iterator[str]:
            for name in weights:
                seen.append(name)
                yield f"new.{name}"

        return {"weights": renamed()}

    def weights() -> Iterator[str]:
        for number in range(2):
            assert len(seen) == number, "read ahead of the original"
            yield str(number)

    place = "model:Model.load"
    prints = model.prints(place)
    apply(
        [patch(Around(target=model.target(place), before=before, fingerprints=prints))]
    )
    assert model.load("model").Model().load(weights()) == ["new.0", "new.1"]


def test_an_addition_is_a_new_function_or_method(model: Any) -> None:
    def triple(x: int) -> int:
        return 3 * x

    def negate(self: Any) -> int:
        return -self.base

    seams = (
        Addition(target=model.target("model:triple"), function=triple),
        Addition(target=model.target("model:Model.negate"), function=negate),
    )
    apply([patch(*seams)])
    module = model.load("model")
    assert (module.triple(2), module.Model(4).negate()) == (6, -4)


def test_replace_and_attribute_take_the_place_of_what_was(model: Any) -> None:
    def double(x: int, by: int = 2) -> str:
        return "ours"

    seams = (
        Replace(
            target=model.target("model:double"),
            function=double,
            fingerprints=model.prints("model:double"),
        ),
        Attribute(target=model.target("model:Model.limit"), value=8, expected="4"),
        Attribute(target=model.target("model:Model.mapping"), value={"qkv": ["q"]}),
    )
    apply([patch(*seams)])
    module = model.load("model")
    assert module.double(1) == "ours"
    assert (module.Model.limit, module.Model.mapping) == (8, {"qkv": ["q"]})


@pytest.mark.parametrize("imported_before", [True, False])
def test_applying_twice_is_harmless(model: Any, imported_before: bool) -> None:
    calls = []

    def counted(x: int, by: int = 2) -> Any:
        calls.append(x)
        return CONTINUE

    if imported_before:
        model.load("user")
    series = [
        patch(
            guard(model, "model:double", counted, importers=(model.target("user"),)),
            Addition(target=model.target("model:triple"), function=counted),
            Attribute(target=model.target("model:Model.limit"), value=8, expected="4"),
        )
    ]
    apply(series)
    apply(series)
    assert model.load("user").double(4) == 8
    assert calls == [4]


def test_the_original_can_be_had_back(model: Any) -> None:
    stock = model.load("model").double
    apply([patch(guard(model, "model:double", small_double))])
    patched = model.load("model").double
    assert patched is not stock
    assert original(patched) is stock
    assert patched.__name__ == "double"


def test_a_binding_that_is_not_ours_raises(model: Any) -> None:
    model.write("user", "from LIBRARY.model import double\ndouble = len\n")
    importers = (model.target("user"),)
    apply([patch(guard(model, "model:double", small_double, importers=importers))])
    with pytest.raises(NotAttached, match="user.double is not our .*model:double"):
        model.load("user")


def test_a_binding_that_is_missing_raises(model: Any) -> None:
    model.write("user", "from LIBRARY.model import double\ndel double\n")
    importers = (model.target("user"),)
    apply([patch(guard(model, "model:double", small_double, importers=importers))])
    with pytest.raises(NotAttached, match="user.double is not our .*but missing"):
        model.load("user")


def test_a_target_that_is_gone_when_imported_raises(model: Any) -> None:
    model.write("model", MODEL + "\n    del double\n")
    apply([patch(guard(model, "model:double", small_double))])
    with pytest.raises(NotAttached, match="model:double is not there"):
        model.load("model")


def test_not_attached_passes_through_what_catches_every_exception() -> None:
    assert not issubclass(NotAttached, Exception)

"""Each kind of seam as lines of source."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from specpack.export.sources import Refusal
from specpack.export.untouched import same_elsewhere
from specpack.seams import (
    CONTINUE,
    Addition,
    Around,
    Attribute,
    Guard,
    Replace,
)

MODULE = "sglang.srt.heads"


def gate(head: Any) -> Any:
    """Admit a packed head.

    It has no ``weight``.
    """
    import gc

    from sglang.srt.heads import logger
    from sglang.srt.helpers import is_packed

    if is_packed(head):
        # A comment inside.
        gc.collect()
        return logger is not None
    return CONTINUE


def gate_from_above(head: Any) -> Any:
    """Judge."""
    from sglang.srt.above import judge

    if judge(head):
        return judge(head)
    return CONTINUE


def wide_init(self: Any, config: Any) -> Any:
    """Fill the line to its end."""
    self.first_name_that_is_long, self.second_name_that_is_long = (
        config.first,
        config[1],
    )
    return CONTINUE


def hiding_gate(head: Any) -> Any:
    """Bind what the original takes from its module."""
    os = head
    print(os)
    return CONTINUE


def rebinding_gate(head: Any) -> Any:
    """Change an argument."""
    head = 1
    return CONTINUE


def size(self: Any) -> Any:
    """Answer at once."""
    if self.config is None:
        return 0
    return CONTINUE


def new_size(self: Any) -> int:
    """Twice as large."""
    return self.config.size * 2


def before_load(self: Any, weights: Any) -> dict[str, Any]:
    """Sort."""
    weights = list(weights)
    return {"weights": sorted(weights)}


def after_load(result: Any, self: Any, weights: Any) -> Any:
    """Scale."""
    return result * 2


def after_load_in_steps(result: Any, self: Any, weights: Any) -> Any:
    """Scale."""
    if result is None:
        result = 0
    return result * 2


def count(names: list[str], head: Any = None) -> int:
    """How many.

    A second paragraph.
    """
    from sglang.srt.helpers import is_packed

    return len(names) + is_packed(head)


def audit(self: Any, names: list[str]) -> int:
    """Look."""
    return len(names)


def guard(library: Any, qualname: str, function: Any) -> Guard:
    return Guard(
        target=f"{MODULE}:{qualname}",
        function=function,
        fingerprints=library.prints(qualname),
    )


def added(library: Any, text: str) -> str:
    """The lines that are new, and -lines that are gone, without context."""
    before = library.tree.text(MODULE).splitlines()
    lines = list(difflib.unified_diff(before, text.splitlines(), lineterm="", n=0))
    return "\n".join(line for line in lines[2:] if not line.startswith("@@"))


def test_a_guard_becomes_lines_at_the_top(library: Any) -> None:
    text = library.edited(guard(library, "gate", gate))
    assert added(library, text) == """\
+import gc
+from sglang.srt.helpers import is_packed
+    # It has no `weight`.
+    if is_packed(head):
+        # A comment inside.
+        gc.collect()
+        return logger is not None
+"""
    assert "def gate(head):\n    # It has" in text
    assert "\n\n    # The first line of the body.\n" in text
    assert same_elsewhere(library.tree.text(MODULE), text, {"gate"})


def test_a_guard_stands_below_the_docstring_of_a_property(library: Any) -> None:
    text = library.edited(guard(library, "Model.size", size))
    expected = '        """How large."""\n        if self.config is None:\n'
    assert expected in text


def test_an_import_that_would_close_a_circle_stays_inside(library: Any) -> None:
    text = library.edited(guard(library, "gate", gate_from_above))
    expected = "def gate(head):\n    from sglang.srt.above import judge\n\n    if"
    assert expected in text


def test_lines_that_get_too_long_are_wrapped(library: Any) -> None:
    text = library.edited(guard(library, "Model.__init__", wide_init))
    assert "config.first,\n" in text
    assert max(map(len, text.splitlines())) <= 88


def test_names_the_function_needs_are_not_hidden(library: Any) -> None:
    library.write("srt.heads", library.tree.text(MODULE).replace("is None", "is os"))
    with pytest.raises(Refusal, match="would hide os"):
        library.edited(guard(library, "gate", hiding_gate))


def test_a_guard_that_changes_an_argument_is_refused(library: Any) -> None:
    with pytest.raises(Refusal, match="would change head"):
        library.edited(guard(library, "gate", rebinding_gate))


def test_a_body_on_its_def_line_is_refused(library: Any) -> None:
    with pytest.raises(Refusal, match="`def` line"):
        library.edited(guard(library, "last", gate))


def test_before_assigns_what_it_returned(library: Any) -> None:
    seam = Around(target=f"{MODULE}:Model.load", before=before_load, fingerprints={})
    assert added(library, library.edited(seam)) == """\
+        weights = list(weights)
+        weights = sorted(weights)
+"""


def test_after_stands_before_each_return_and_the_end(library: Any) -> None:
    seam = Around(target=f"{MODULE}:Model.load", after=after_load, fingerprints={})
    assert added(library, library.edited(seam)) == """\
-            return
+            return None * 2
-                return self.limit + 1
+                return (self.limit + 1) * 2
+        return None * 2"""


def test_an_after_of_several_lines_names_its_result(library: Any) -> None:
    seam = Around(
        target=f"{MODULE}:Model.size", after=after_load_in_steps, fingerprints={}
    )
    assert added(library, library.edited(seam)) == """\
-        return self.config.size
+        result = self.config.size
+        if result is None:
+            result = 0
+        return result * 2"""


def test_a_second_patch_of_a_function_runs_first(library: Any) -> None:
    first = Around(target=f"{MODULE}:Model.load", before=before_load, fingerprints={})
    second = guard(library, "Model.load", size)
    text = library.edited(first, second)
    assert text.index("self.config is None") < text.index("list(weights)")


def test_a_function_goes_before_the_class_the_patch_edits(library: Any) -> None:
    addition = Addition(target=f"{MODULE}:count_names", function=count)
    text = library.edited(addition, guard(library, "Model.size", size))
    expected = '''

def count_names(names: list[str], head: Any = None) -> int:
    """How many.

    A second paragraph.
    """
    return len(names) + is_packed(head)


class Model(Base):
'''
    assert expected in text
    assert "\nfrom typing import Any, Optional\n" in text


def test_a_function_nothing_uses_goes_behind_the_last(library: Any) -> None:
    addition = Addition(target=f"{MODULE}:count_names", function=count)
    text = library.edited(addition)
    assert "        return 1\n\n\ndef count_names(" in text
    assert text.endswith("is_packed(head)\n\n\nEntryClass = Model\n")


def test_a_method_goes_to_the_end_of_its_class(library: Any) -> None:
    addition = Addition(target=f"{MODULE}:Model.audit", function=audit)
    text = library.edited(addition)
    assert "            print(name)\n\n    def audit(self, names" in text


def test_a_replaced_function_keeps_its_decorators(library: Any) -> None:
    seam = Replace(target=f"{MODULE}:Model.size", function=new_size, fingerprints={})
    text = library.edited(seam)
    assert '    @property\n    def size(self) -> int:\n        """Twice' in text
    assert "return self.config.size * 2\n\n    def load" in text


def test_an_attribute_joins_the_others(library: Any) -> None:
    seam = Attribute(target=f"{MODULE}:Model.names", value={"a": ["b"]})
    assert '    limit = 4\n    names = {"a": ["b"]}\n' in library.edited(seam)


def test_an_attribute_that_is_there_is_set(library: Any) -> None:
    seam = Attribute(target=f"{MODULE}:Model.limit", value=5, expected="4")
    assert added(library, library.edited(seam)) == "-    limit = 4\n+    limit = 5"


def test_an_edit_elsewhere_does_not_go_unseen(library: Any) -> None:
    text = library.tree.text(MODULE)
    assert same_elsewhere(text, text.replace("return False", "return 0"), {"gate"})
    assert not same_elsewhere(text, text.replace("= 4", "= 5"), {"gate"})
    assert not same_elsewhere(text, text.replace("# The", "# A"), {"Model.size"})
    assert not same_elsewhere(
        text, text.replace("import Optional", "import Any"), set()
    )

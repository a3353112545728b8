"""Imports land where SGLang's isort would put them."""

from __future__ import annotations

from typing import Any

import isort
import pytest

from specpack.export.cycles import closes_circle
from specpack.export.imports import Import, add, block, bound_names
from specpack.export.sources import Sources

HEADER = '''# License

"""A module."""

from __future__ import annotations

import logging
import os.path as osp
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Optional,
    Tuple,
    Union,
)

import torch
from torch import nn

from sglang.srt.layers.linear import RowParallelLinear as Row
from sglang.srt.layers.utils import PPMissingLayer

# Utils
from sglang.srt.utils import add_prefix, is_cuda  # noqa: F401

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)


def run():
    import json

    return json
'''
BARE = ('"""A module."""\n\nx = 1\n', "x = 1\n", "import zlib\n\nx = 1\n")
IMPORTS = [
    Import("gc"),
    Import("torch.nn.functional", None, "F"),
    Import("collections.abc", "Sequence"),
    Import("typing", "Iterator"),
    Import("typing", "cast"),
    Import("numpy"),
    Import("torch", "Tensor"),
    Import("sglang.srt.environ", "envs"),
    Import("sglang.srt.layers.linear", "QKVParallelLinear"),
    Import("sglang.srt.layers.utils", "get_layer_id"),
    Import("sglang.srt.layers.utils", "LAYERS"),
    Import("sglang.srt.speculative.spec_utils", "is_packed_lm_head"),
    Import("sglang.srt.speculative.spec_utils", "a" * 60),
    Import("sglang.srt.utils.common", "fast_topk"),
]


def their_order(text: str) -> str:
    return isort.code(text, profile="black", known_first_party=["sglang"])


@pytest.mark.parametrize("imported", IMPORTS, ids=lambda imported: imported.item)
@pytest.mark.parametrize("text", [HEADER, *BARE], ids=["header", "doc", "none", "one"])
def test_isort_leaves_an_added_import_alone(text: str, imported: Import) -> None:
    assert their_order(text) == text
    added = add(text, imported)
    assert bound_names(added)[imported.bound] == imported
    assert their_order(added) == added


def test_isort_leaves_all_of_them_alone_together() -> None:
    text = HEADER
    for imported in IMPORTS:
        text = add(text, imported)
    assert their_order(text) == text


def test_imports_inside_a_function_are_sorted_too() -> None:
    text = "def run():\n" + block(IMPORTS, "    ") + "\n\n    return 1\n"
    assert their_order(text) == text


def test_names_for_type_checkers_are_not_bound() -> None:
    assert "ServerArgs" not in bound_names(HEADER)
    assert bound_names("try:\n    import a\nexcept E:\n    a = None\n") == {"a": None}


@pytest.mark.parametrize(
    "text, closes",
    [
        ("import sglang.srt.heads\n", True),
        ("from sglang.srt import heads\n", True),
        ("from . import heads\n", True),
        ("from .heads import (\n    gate,\n)\n", True),
        ("try:\n    from sglang.srt import heads\nexcept E:\n    pass\n", True),
        ("from sglang.srt import base, above\n", True),
        ("def f(\n    x,\n) -> int:\n    from sglang.srt import heads\n", False),
        ("if TYPE_CHECKING:\n    from sglang.srt import heads\n", False),
        ("from sglang.srt.base import Base\nimport heads\n", False),
    ],
)
def test_circles_are_read_from_source(library: Any, text: str, closes: bool) -> None:
    library.write("srt.new", text)
    sources = Sources(library.tree)
    assert closes_circle(sources, "sglang.srt.heads", "sglang.srt.new") is closes


def test_a_package_imports_what_its_modules_do_not(library: Any) -> None:
    library.write("srt.pack.__init__", "from sglang.srt import heads\n")
    library.write("srt.pack.new", "x = 1\n")
    sources = Sources(library.tree)
    assert closes_circle(sources, "sglang.srt.heads", "sglang.srt.pack.new")
    assert not closes_circle(sources, "sglang.srt.pack.other", "sglang.srt.base")

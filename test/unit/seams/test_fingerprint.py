import ast
import sys
import textwrap

import pytest

from specpack.seams.fingerprint import canonical, fingerprint
from specpack.seams.source import find_function, installed

TREE = installed()
needs_sglang = pytest.mark.skipif(
    TREE is None or TREE.version != "0.5.23", reason="reads the source of SGLang 0.5.23"
)

# Recorded from the wheel before this code existed, with `ast.dump` on Python 3.11.
KNOWN = {
    "layers.logits_processor:should_apply_lm_head_quant_method": "3e8f07",
    "layers.logits_processor:LogitsProcessor._compute_lm_head": "35c70f",
    "models.qwen3_5:Qwen3_5ForConditionalGeneration.get_embed_and_head": "1b3fbd",
    "models.qwen3_5:Qwen3_5ForConditionalGeneration.set_embed_and_head": "646760",
    "models.qwen3_5_text:Qwen3_5ForCausalLM.get_embed_and_head": "ab4265",
    "models.qwen3_5_text:Qwen3_5ForCausalLM.load_weights": "e3349f",
    "speculative.eagle_worker_v2:EagleDraftWorker.init_lm_head": "cdf90e",
    "models.dflash:DFlashDraftModel.load_weights": "a56f82",
    "models.dflash:candidate_topk": "a5601d",
}


@needs_sglang
@pytest.mark.parametrize("place", KNOWN)
def test_reproduces_the_recorded_digits(place: str) -> None:
    module, qualname = place.split(":")
    text = TREE.text(f"sglang.srt.{module}")
    assert fingerprint(find_function(text, qualname))[:6] == KNOWN[place]


SOURCE = '''
    @decorator(1)
    async def f[T](a: int, /, b=2.5, *c, d: str = "x", **e) -> None:
        """Docstring."""
        class Inner:
            """Another."""
        match a:
            case None: return {**e, "k": [*c]}
        return f"{b!r:>{a}} {d=}", lambda x, *, y=None: x
'''


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="dumps empty lists no more")
def test_is_the_dump_of_the_node_without_docstrings() -> None:
    source = SOURCE.replace("[T]", "").replace('"""Docstring."""', "")
    source = source.replace('"""Another."""', "x: int")
    node = ast.parse(textwrap.dedent(source)).body[0]
    expected = ast.dump(node).replace(", type_params=[]", "")
    assert canonical(node) == expected


def test_is_the_same_on_every_python() -> None:
    # The digest was computed on 3.10, 3.11, 3.12 and 3.13.
    assert fingerprint(SOURCE.replace("[T]", ""))[:12] == "afe9b2ef3bd0"


def test_ignores_layout_comments_and_docstrings() -> None:
    plain = "def f(a):\n    return a + 1\n"
    other = 'def f( a ):\n    "Doc."\n    # why\n    return (a\n      + 1)\n'
    indented = textwrap.indent(other, "    ")
    assert fingerprint(plain) == fingerprint(other) == fingerprint(indented)


@pytest.mark.parametrize(
    "changed",
    [
        "def f(a):\n    return a + 2\n",
        "def f(a, b=1):\n    return a + 1\n",
        "@cache\ndef f(a):\n    return a + 1\n",
        "def f(a: int):\n    return a + 1\n",
    ],
)
def test_sees_what_changes_behaviour_or_interface(changed: str) -> None:
    assert fingerprint(changed) != fingerprint("def f(a):\n    return a + 1\n")


def test_keeps_multi_line_strings_as_they_are() -> None:
    body = "def f():\n    return '''a\nb'''\n"
    method = "    def f():\n        return '''a\nb'''\n"
    assert fingerprint(body) == fingerprint(method)

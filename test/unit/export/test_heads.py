"""The list of heads built without a prefix or a config."""

from __future__ import annotations

from pathlib import Path

from specpack.export.heads import heads, render
from specpack.seams.source import Tree, installed

ROOT = Path(__file__).parents[3]


def test_the_document_is_that_of_the_installed_sglang() -> None:
    tree = installed()
    assert tree is not None
    written = (ROOT / "docs" / "heads.md").read_text()
    assert written == render(
        tree
    ), "run: python -m specpack.export.heads > docs/heads.md"


def test_what_a_call_leaves_out(tmp_path: Path) -> None:
    models = tmp_path / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "one.py").write_text(
        "class Model:\n"
        "    def __init__(self, tied, config, **more):\n"
        "        self.head = self.words if tied else ParallelLMHead(8, quant_config=0)\n"
        "        self.other = layers.ParallelLMHead(8, prefix='', quant_config=config)\n"
        "        self.third = ParallelLMHead(8, **more)\n"
    )
    found = [
        (h.owner, h.module, h.missing) for h in heads(Tree(models.parents[1], "1"))
    ]
    assert found == [
        ("Model", "head", ("prefix",)),
        ("Model", "other", ()),
        ("Model", "third", ()),
    ]

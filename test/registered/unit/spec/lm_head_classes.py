"""Every model class that hands over or takes an embedding and a head, and what it does.

Classes are found in the source of ``sglang.srt.models``. One that cannot be imported
here is judged by its accessors alone, taken from its source.
"""

import ast
import contextlib
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from lm_head_sharing import (
    HIDDEN,
    VOCAB,
    init_lm_head,
    make_draft,
    make_model,
    make_target,
    quantized_head,
)
from sglang.srt import models
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.models.gemma3_causal import Gemma3ForCausalLM

DRAFT = re.compile("MTP|NextN|Eagle|Assistant")
ACCESSORS = ("get_embed_and_head", "set_embed_and_head")
MODULE, KEPT, STOCK, NOTHING = "module", "keeps its own", "as on stock", "-"
# With a ``.weight`` and without one.
HEADS = ("weight_packed", "float8_e4m3fn")


def _methods(node):
    return {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}


def _bases(node):
    return {ast.unparse(base).rpartition(".")[2] for base in node.bases}


@functools.cache
def scan():
    """The classes that define or inherit an accessor: ``{name: source tree}``."""
    (root,) = map(Path, models.__path__)
    nodes = {}
    for file in sorted(root.rglob("*.py")):
        path = ".".join(file.relative_to(root).with_suffix("").parts)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                nodes[f"{path}:{node.name}"] = node
    able, known = set(), None
    while known != len(able):
        known = len(able)
        able |= {
            node.name
            for node in nodes.values()
            if _methods(node).keys() & {*ACCESSORS} or _bases(node) & able
        }
    return {name: node for name, node in nodes.items() if node.name in able}


@functools.cache
def import_class(name):
    """The class, or one with its accessors only where its module cannot be imported."""
    path, _, class_name = name.partition(":")
    try:
        return getattr(importlib.import_module(f"{models.__name__}.{path}"), class_name)
    except ImportError:
        node = scan()[name]
        kept = [m for n, m in _methods(node).items() if n in (*ACCESSORS, "lm_head")]
        shell = ast.ClassDef(
            class_name, [ast.parse("nn.Module").body[0].value], [], [], []
        )
        shell.body = kept
        tree = ast.fix_missing_locations(ast.Module([shell], []))
        names = {"torch": torch, "nn": torch.nn}
        exec(compile(tree, name, "exec"), names)
        return names[class_name]


def is_importable(name):
    """Whether the class itself is judged."""
    return import_class(name).__module__.startswith(models.__name__)


def _source_of_getter(name):
    if not is_importable(name):
        return ast.unparse(scan()[name])
    getter = getattr(import_class(name), "get_embed_and_head", None)
    return textwrap.dedent(inspect.getsource(getter)) if getter else ""


def stand_in(name, lm_head):
    """An instance with an embedding and a head where its accessors look for them."""
    model_class, source = import_class(name), _source_of_getter(name)
    model = model_class.__new__(model_class)
    torch.nn.Module.__init__(model)
    text = make_target(lm_head)
    if hasattr(model_class, "get_embed_and_head_for_draft"):
        text = make_model(Gemma3ForCausalLM, lm_head)
        text._shared_vocab_tp_group = None
    text.embed_tokens = text.model.word_embeddings = text.model.embed_tokens
    if "self.language_model" in source:
        model.language_model = text
        if "embed, embed" in source:
            del text.lm_head
            model.lm_head = lm_head
    elif "self.thinker" in source:
        model.thinker = torch.nn.Module()
        model.thinker.language_model = text
    elif "self.llm" in source:
        model.llm = text
    else:
        model.model = text.model
        if "self.model.get_embed_and_head" not in source:
            model.lm_head = lm_head
            model.model.shared_head = torch.nn.Module()
            model.model.shared_head.head = lm_head
    model.config = SimpleNamespace(tie_word_embeddings=False)
    model.pp_group = SimpleNamespace(
        is_first_rank=True, is_last_rank=True, world_size=1
    )
    model._shared_vocab_tp_group = model.target_embed_weight = None
    model._owns_lm_head = model._mtp_loaded_embed = False
    return model


@contextlib.contextmanager
def no_device():
    """Let accessors that empty a device's cache run on a machine without one."""
    with mock.patch("torch.cuda.empty_cache"), mock.patch("torch.cuda.synchronize"):
        yield


def _share(target, draft, head, embed):
    """``module`` where the draft ends with the target's head and embedding."""
    with no_device():
        try:
            init_lm_head(target, draft)
        except Exception as error:
            return f"refused: {type(error).__name__}: {error}"
    heads = {m for n, m in draft.named_modules() if n.endswith(("lm_head", ".head"))}
    if heads != {head}:
        return KEPT
    shared = any(param is embed for param in draft.parameters())
    return MODULE if shared else "the head without its embedding"


def as_target(name, kind):
    """What a draft gets of the quantized head of such a target."""
    drafts = DRAFT.search(name.partition(":")[2])
    if drafts or not hasattr(import_class(name), "get_embed_and_head"):
        return NOTHING
    head = quantized_head(kind)
    target = stand_in(name, head)
    if head not in target.modules():
        return STOCK
    (embed,) = {m for m in target.modules() if isinstance(m, VocabParallelEmbedding)}
    return _share(target, make_draft(), head, embed.weight)


def as_draft(name, kind):
    """What such a draft makes of its target's quantized head."""
    if not hasattr(import_class(name), "set_embed_and_head"):
        return NOTHING
    head, own = quantized_head(kind), ParallelLMHead(VOCAB, HIDDEN)
    target, draft = make_target(head), stand_in(name, own)
    if own not in draft.modules():
        return STOCK
    return _share(target, draft, head, target.model.embed_tokens.weight)


def outcome(judge, name):
    """The outcome for every kind of head, which is one."""
    outcomes = {judge(name, kind) for kind in HEADS}
    return outcomes.pop() if len(outcomes) == 1 else f"differs: {sorted(outcomes)}"


@functools.cache
def rows():
    """``(class, as a target, as a draft)``, without backbones named as a model is."""
    judged = [(n, outcome(as_target, n), outcome(as_draft, n)) for n in scan()]
    return [row for row in judged if row[1:] != (NOTHING, NOTHING)]

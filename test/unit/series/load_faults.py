"""Seeds one fault at a time into a checkpoint and reports those that nothing names.

`load_faults.py CASE…`: a line of JSON with the loads made and the faults missed. A model is built once; for each fault its memory is put back to what it
was and SGLang's loader loads the damaged checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "test" / "fixtures"
sys.path.insert(0, str(ROOT / "test" / "registered" / "unit" / "spec"))
# Whose absence is harmless, for the reasons that the audit gives: unread shapes, and an
# embedding that a draft borrows.
MAY_BE_ABSENT = {
    "target": ("weight_shape",),
    "draft": ("weight_shape", "embed_tokens.weight"),
}
REFUSED_AS = {"fc.weight": ("fc",), "fc.weight_packed": ("fc",)}
AUDIT = "sglang.srt.model_loader.load_audit"
DENSE = (torch.bfloat16, torch.float16, torch.float32)


class Messages(logging.Handler):
    """Collects what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def quantization(tensors: dict[str, torch.Tensor], modules: list[str]) -> dict:
    """A config that packs these modules and names all others as dense."""
    import dflash_drafts as drafts

    matrices = {n.rpartition(".")[0] for n, t in tensors.items() if t.ndim == 2}
    dense = sorted(matrices - {*modules})
    return drafts.compressed_tensors(
        targets=[f"re:.*{m.removeprefix('model.')}$" for m in modules],
        ignore=[f"re:.*{m.removeprefix('model.')}$" for m in dense],
    )


def case(name: str) -> tuple[dict, dict[str, torch.Tensor], bool]:
    """A fixture's config and tensors, packed if asked, and whether it is a draft."""
    import dflash_drafts as drafts

    fixture = "draft" if "dflash" in name else "target"
    config = json.loads((FIXTURES / fixture / "config.json").read_text())
    tensors = load_file(FIXTURES / fixture / "model.safetensors")
    if "packed" in name:
        kinds = ("gate_proj", "up_proj", "down_proj", "o_proj", "lm_head")
        modules = drafts.projections(tensors, *kinds)
        if fixture == "draft":
            modules.append("fc")
        config["quantization_config"] = quantization(tensors, modules)
        tensors, _ = drafts.quantize_modules(tensors, modules)
    return config, tensors, "target" not in name


def build(config: dict, tensors: dict[str, torch.Tensor], is_draft: bool):
    """The model as SGLang's loader builds it for this checkpoint, not loaded."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.configs.update_config import adjust_config_with_unaligned_cpu_tp
    from sglang.srt.model_loader.loader import get_model_loader

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        save_file(tensors, Path(folder, "model.safetensors"))
        model_config = ModelConfig(
            model_path=folder, is_draft_model=is_draft, dtype="bfloat16"
        )
        load_config = LoadConfig()
        model_config = adjust_config_with_unaligned_cpu_tp(model_config, load_config, 1)
        return get_model_loader(load_config).initialize_model_for_startup(
            model_config=model_config, device_config=DeviceConfig("cpu")
        )


def faults(
    tensors: dict[str, torch.Tensor], taken: set[str], may_be_absent: tuple[str, ...]
) -> Iterator[tuple[str, str, dict[str, torch.Tensor]]]:
    """Every fault of every tensor that the model takes: its kind, its tensor, the
    checkpoint."""
    for name in sorted(taken):
        tensor = tensors[name]
        left = {k: v for k, v in tensors.items() if k != name}
        other = torch.int8 if tensor.dtype in DENSE else torch.float32
        if not name.endswith(may_be_absent):
            yield "drop", name, left
            yield "rename", name, left | {f"{name}_renamed": tensor}
        if not name.endswith("weight_shape"):
            yield "dtype", name, tensors | {name: tensor.to(other)}


def load(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> str:
    """What the first load of a checkpoint says, as an error or in the log."""
    from sglang.srt.model_loader.loader import DefaultModelLoader

    messages = Messages()
    logging.getLogger(AUDIT).addHandler(messages)
    try:
        DefaultModelLoader.load_weights_only(
            model, iter(tensors.items()), torch.device("cpu")
        )
    except ValueError as error:
        messages.lines.append(str(error))
    finally:
        logging.getLogger(AUDIT).removeHandler(messages)
    return "\n".join(messages.lines)


def parameters_of(model: torch.nn.Module, tensors: dict) -> dict[str, set[str]]:
    """Where each tensor of a sound checkpoint goes, for those that go anywhere."""
    from sglang.srt.model_loader.load_trace import LoadTrace

    trace = LoadTrace(model)
    with trace:
        model.load_weights(trace.follow(tensors.items()))
    places: dict[str, set[str]] = {}
    for target in [t for found in trace.targets.values() for t in found]:
        for origin in {o.name for origins in target.writes.values() for o in origins}:
            places.setdefault(origin, set()).add(target.name)
    return places


def names(said: str, expected: set[str]) -> bool:
    """Whether one of these names is among what was said, as a whole."""
    return any(
        re.search(rf"(?<![\w.]){re.escape(name)}(?![\w.]*\w)", said)
        for name in expected
    )


def missed_faults(name: str) -> Iterator[str | None]:
    """For each load, the sound one first: what nothing named, or None."""
    config, tensors, is_draft = case(name)
    model = build(config, tensors, is_draft)
    built, audit = dict(model.__dict__), dict(model.load_audit.__dict__)
    memory = {name: value.clone() for name, value in model.state_dict().items()}

    def reset() -> None:
        model.__dict__.clear()
        model.__dict__.update(built)
        model.load_audit.__dict__.update(audit)
        model.load_state_dict(memory)

    places = parameters_of(model, tensors)
    reset()
    said = load(model, tensors)
    yield f"{name}: {said}" if said else None
    absent = MAY_BE_ABSENT["draft" if is_draft else "target"]
    for kind, tensor, damaged in faults(tensors, set(places), absent):
        reset()
        said = load(model, damaged)
        expected = {
            tensor,
            f"{tensor}_renamed",
            *places[tensor],
            *REFUSED_AS.get(tensor, ()),
        }
        fault = f"{name}: {kind} {tensor}: {said or 'nothing'}"
        yield None if names(said, expected) else fault


def main(cases: list[str]) -> None:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.test.layer_ut_utils import init_single_process_dist

    init_single_process_dist()
    outcomes = [outcome for name in cases for outcome in missed_faults(name)]
    missed = [outcome for outcome in outcomes if outcome is not None]
    print(json.dumps({"loads": len(outcomes), "missed": missed}))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main(sys.argv[1:])

"""A model's first complete load is judged: what stayed unfilled, unread or misread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Iterable, Optional, Tuple

from specpack.seams import CONTINUE, Around, Guard, NewModule, Patch
from specpack.series import probes
from specpack.series.model_loader.lm_head import INITIALIZE_MODEL

if TYPE_CHECKING:
    import torch

_PACKAGE = "sglang.srt.model_loader"
_FILES = "specpack.series.files.model_loader"


def after_initialize_model(
    result: torch.nn.Module,
    model_config: Any,
    load_config: Any,
    quant_config: Optional[Any] = None,
) -> torch.nn.Module:
    """Tell the model's loads what they are to be judged by."""
    from sglang.srt.model_loader.load_audit import plan_load_audit

    plan_load_audit(result, model_config, quantizes=quant_config is not None)
    return result


def load_weights_only(
    model: torch.nn.Module,
    weights: Iterable[Tuple[str, torch.Tensor]],
    target_device: torch.device,
) -> Any:
    """Watch the load, and judge it before quant methods rework the parameters.

    Weight updates come this way, too, with parts of a checkpoint.
    """
    from sglang.srt.model_loader.load_audit import audited, begin_load_audit
    from sglang.srt.model_loader.loader import DefaultModelLoader

    audit = begin_load_audit(model)
    if audit is not None:
        with audited(model, audit, weights) as watched:
            DefaultModelLoader.load_weights_only(model, watched, target_device)
        return None
    return CONTINUE


def _probe() -> bool:
    from unittest import mock

    import torch
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader

    class Headless(torch.nn.Module):
        def __init__(self, config: Any, quant_config: Any) -> None:
            super().__init__()
            self.lm_head = torch.nn.Linear(2, 2, bias=False)

        def load_weights(self, weights: Any) -> None:
            list(weights)

    config = SimpleNamespace(tie_word_embeddings=False)
    model_config = SimpleNamespace(
        hf_config=config,
        hf_text_config=config,
        is_draft_model=False,
        is_generation=True,
    )
    # As no server has published its settings, what asks for them is left out.
    with mock.patch.multiple(
        loader,
        get_model_architecture=lambda config: (Headless, "Headless"),
        resolve_shared_experts_config=lambda *args: None,
        get_model=mock.MagicMock(),
        check_stage_producers=lambda model: None,
    ):
        model = loader._initialize_model(model_config, LoadConfig(), None)
    load = loader.DefaultModelLoader.load_weights_and_postprocess
    return probes.raises(ValueError, load, model, [], torch.device("cpu"))


PATCH = Patch(
    name="load-audit",
    symptom="A model serves with parameters that its checkpoint never filled (a scale, "
    "a shard of a fused projection, a head), with tensors that nothing read, or with "
    "codes taken for values: no error, and of a draft accept length 1 "
    "(FAULTS H6, H9, D2, D5, D11).",
    upstream="#39254",
    removal="when SGLang's loader reports what a checkpoint leaves unfilled or unread",
    probe=_probe,
    seams=(
        *(
            NewModule(target=f"{_PACKAGE}.{name}", source=f"{_FILES}.{name}")
            for name in ("load_trace", "load_audit")
        ),
        Around(after=after_initialize_model, **INITIALIZE_MODEL),
        Guard(
            target=f"{_PACKAGE}.loader:DefaultModelLoader.load_weights_only",
            function=load_weights_only,
            fingerprints={
                "0.5.23": "bff752c8d7511d77a25d61df98f9a6c8"
                "06730f612b8ec174715cfb557e08d464",
            },
        ),
    ),
    title="Loader: audit a model's first complete load",
    cost="Runs at load only; tensors stay lazy.",
    tests=(
        "unit/model_loader/test_load_audit.py",
        "unit/model_loader/test_load_audit_policy.py",
        "unit/model_loader/audited_models.py",
        "unit/spec/test_dflash_quantized_draft_classes.py",
        "unit/spec/test_dflash_quantized_draft_loading.py",
        "unit/spec/test_dflash_quantized_draft_layout.py",
        "unit/spec/dflash_drafts.py",
        "e2e/spec/test_dflash_dense_draft_online_fp8.py",
        "e2e/spec/test_packed_head_speculation.py",
        "e2e/spec/cycle_models.py",
        "e2e/spec/cycle_server.py",
    ),
)

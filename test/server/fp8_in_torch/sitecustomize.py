"""On PYTHONPATH of a server: weight-only FP8 layers run in torch, their `.weight` kept,
and its MTP draft takes tensors only, as most draft classes do."""

import wrapt


@wrapt.when_imported(
    "sglang.srt.layers.quantization.compressed_tensors.schemes."
    "compressed_tensors_w8a16_fp8"
)
def without_marlin(module):
    def apply_weights(self, layer, x, bias=None):
        return (x.float() @ (layer.weight.float() * layer.weight_scale).T).to(x.dtype)

    scheme = module.CompressedTensorsW8A16Fp8
    scheme.process_weights_after_loading = lambda self, layer: None
    scheme.apply_weights = apply_weights


@wrapt.when_imported("sglang.srt.models.qwen3_5_mtp")
def tensors_only(module):
    del module.Qwen3_5ForCausalLMMTP.set_lm_head_from_target

"""On PYTHONPATH of a server: weight-only FP8 layers run in torch, their `.weight` kept."""

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

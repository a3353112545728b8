"""The patches of `sglang.srt.layers.quantization`."""

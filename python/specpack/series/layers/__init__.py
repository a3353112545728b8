"""Patches of `sglang.srt.layers`, one module per file."""

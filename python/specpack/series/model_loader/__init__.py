"""Patches of `sglang.srt.model_loader`, one module per file."""

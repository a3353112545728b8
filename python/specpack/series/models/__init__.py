"""Patches of `sglang.srt.models`, one module per file."""

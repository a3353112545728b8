"""Patches of `sglang.srt.managers`, one module per file."""

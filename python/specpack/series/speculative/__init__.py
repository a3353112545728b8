"""Patches of `sglang.srt.speculative`, one module per file."""

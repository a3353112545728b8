"""Patches of `sglang.srt.managers.scheduler_components`, one module per file."""

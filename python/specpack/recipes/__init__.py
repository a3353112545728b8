"""Quantizes targets and drafts with llm-compressor, in an environment of its own."""

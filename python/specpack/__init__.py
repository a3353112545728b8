"""Speculative decoding fixes for SGLang, as a plugin and as commits."""

__version__ = "0.1.0"

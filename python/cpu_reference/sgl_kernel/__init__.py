"""Torch implementations of the operators SGLang's CPU engine calls."""

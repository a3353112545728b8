"""Whole files the series adds to SGLang, at the mirrored path; found, not imported."""

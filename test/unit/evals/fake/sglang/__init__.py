"""In place of SGLang where a test needs a server that starts in a moment."""

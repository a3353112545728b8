"""Files below `sglang/srt/model_loader`."""

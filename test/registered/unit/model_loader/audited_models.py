"""Small models that SGLang's loader loads under the load audit."""

import logging
import os
from types import SimpleNamespace
from unittest import mock

import torch
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.model_loader.weight_utils import default_weight_loader

LOGGER = "sglang.srt.model_loader.load_audit"
WIDTH = 4


def parameter(*shape, dtype=torch.bfloat16):
    """A parameter as a loader fills it, of memory that nobody wrote."""
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def layer(**parameters):
    module = torch.nn.Module()
    for name, value in parameters.items():
        module.register_parameter(name, value)
    return module


class Model(torch.nn.Module):
    """Modules by name, and a loader that copies what it finds a parameter for.

    `loads` gives what is done with a tensor instead, by its name.
    """

    def __init__(self, loads=None, **modules):
        super().__init__()
        self.loads = loads or {}
        for name, module in modules.items():
            self.add_module(name, module)

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if name in self.loads:
                self.loads[name](self, tensor)
            elif name in parameters:
                weight_loader = getattr(
                    parameters[name], "weight_loader", default_weight_loader
                )
                weight_loader(parameters[name], tensor)


class Draft(Model):
    def set_embed_and_head(self, embed, head):
        raise AssertionError("sharing comes after the load")


def plan(model, draft=False, stored=False, quantizes=None, tied=False, setting=None):
    """Let the audit judge the loads of a model with such a config."""
    from sglang.srt.model_loader.load_audit import plan_load_audit

    config = SimpleNamespace(tie_word_embeddings=tied)
    model_config = SimpleNamespace(
        hf_config=config,
        hf_text_config=config,
        is_draft_model=draft,
        is_generation=True,
        _is_already_quantized=lambda: stored,
    )
    environment = {} if setting is None else {"SPECPACK_LOAD_AUDIT": setting}
    with mock.patch.dict(os.environ, environment):
        plan_load_audit(model, model_config, stored if quantizes is None else quantizes)
    return model


def load(model, tensors):
    """Load through SGLang's loader; what the audit logs."""
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        DefaultModelLoader.load_weights_only(model, tensors, torch.device("cpu"))
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)
    return messages


def tensors(*names, value=1.0, shape=(WIDTH, WIDTH), dtype=torch.bfloat16):
    return [(name, torch.full(shape, value, dtype=dtype)) for name in names]

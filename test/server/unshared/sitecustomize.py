"""On PYTHONPATH of a server: its MTP draft keeps the head it was initialised with."""

import wrapt


@wrapt.when_imported("sglang.srt.models.qwen3_5_mtp")
def keep_own_head(module):
    draft = module.Qwen3_5ForCausalLMMTP
    share = draft.set_embed_and_head
    draft.set_embed_and_head = lambda self, embed, head: share(self, embed, None)
    draft.set_lm_head_from_target = lambda self, head: None

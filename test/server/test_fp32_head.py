"""``--enable-fp32-lm-head`` on a packed head: served, and drafts are followed.

That the activations really are float32 there is pinned by the registered unit tests.
"""

from __future__ import annotations

from asking import accept_length, complete_all


def test_drafts_are_followed(start, packed_target, prompts):
    with start(packed_target, "specpack", "NEXTN", "--enable-fp32-lm-head") as server:
        assert accept_length(complete_all(server, prompts, max_tokens=64)) >= 3.0

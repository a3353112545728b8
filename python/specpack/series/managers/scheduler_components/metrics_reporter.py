"""A server whose drafts are hardly ever accepted says so once, with what is usual."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from specpack.seams import CONTINUE, Addition, Attribute, Guard, Patch

REPORTER = (
    "sglang.srt.managers.scheduler_components.metrics_reporter:SchedulerMetricsReporter"
)
# As many steps as tell 1.05 from 1 without doubt, and a minute of a small server.
FIRST_VERIFY_STEPS = 2000


def warn_of_rejected_drafts(self: Any) -> None:
    """Warn where the mean accept length of the first verify steps is under 1.05.

    N-gram drafts are none of a model's, and few of them fit a text without
    repetition.
    """
    from sglang.srt.managers.scheduler_components.metrics_reporter import logger

    algorithm = self.scheduler.spec_algorithm
    steps = self.spec_first_verify_ct
    accept_length = self.spec_first_num_accept_tokens / steps
    if accept_length >= 1.05 or algorithm.is_ngram() or not self.is_stats_logging_rank:
        return
    logger.warning(
        f"The mean accept length over the first {steps} verify steps is "
        f"{accept_length:.3f}: {algorithm.name} costs time and saves none, because "
        "hardly a draft is accepted. The text is right all the same, since the "
        "target verifies it. The usual causes: the draft's lm_head is not the "
        "target's, or is quantized differently; tensors of the draft were not "
        "loaded (start once with SPECPACK_LOAD_AUDIT=refuse, which names them); "
        "the draft's KV cache is quantized; the chat template is in a thinking "
        "mode that the draft was not trained on; its block_size or "
        "target_layer_ids are wrong; it was trained for another target."
    )


def update_spec_metrics(
    self: Any,
    bs: int,
    num_correct_drafts: int,
    num_accept_tokens: int,
    num_block_accept_tokens: int = 0,
    num_cap_tokens: int = 0,
) -> Any:
    """Judge the first verify steps once they are done; later ones cost a comparison.

    The counters beside these are reset with every log line.
    """
    if self.spec_first_verify_ct < self.spec_num_first_verify_steps:
        self.spec_first_verify_ct += bs
        self.spec_first_num_accept_tokens += num_accept_tokens
        if self.spec_first_verify_ct >= self.spec_num_first_verify_steps:
            self._warn_of_rejected_drafts()
    return CONTINUE


def _probe() -> bool:
    from sglang.srt.managers.scheduler_components import metrics_reporter
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    reporter = metrics_reporter.SchedulerMetricsReporter.__new__(
        metrics_reporter.SchedulerMetricsReporter
    )
    reporter.scheduler = SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.EAGLE)
    reporter.is_stats_logging_rank = True
    reporter.reset_metrics()
    warnings: list[str] = []
    present, metrics_reporter.logger = (
        metrics_reporter.logger,
        SimpleNamespace(warning=lambda text, *args: warnings.append(text)),
    )
    try:
        reporter.update_spec_metrics(FIRST_VERIFY_STEPS, 0, FIRST_VERIFY_STEPS)
    finally:
        metrics_reporter.logger = present
    return bool(warnings)


PATCH = Patch(
    name="rejected-drafts-warning",
    symptom="A draft whose head, tensors or config are wrong is served without a word: "
    "every draft is rejected, the text stays right, and only speed is lost.",
    upstream="#39087",
    removal="when the scheduler warns of an accept length that stays near 1",
    probe=_probe,
    seams=(
        Attribute(
            target=f"{REPORTER}.spec_num_first_verify_steps", value=FIRST_VERIFY_STEPS
        ),
        Attribute(target=f"{REPORTER}.spec_first_verify_ct", value=0),
        Attribute(target=f"{REPORTER}.spec_first_num_accept_tokens", value=0),
        Addition(
            target=f"{REPORTER}._warn_of_rejected_drafts",
            function=warn_of_rejected_drafts,
        ),
        Guard(
            target=f"{REPORTER}.update_spec_metrics",
            function=update_spec_metrics,
            fingerprints={
                "0.5.23": "cda927bc53b03f2f39a381e94fddb946"
                "ba42e394144cb1d4807ed799606d5b88",
            },
        ),
    ),
    title="Warn once when hardly a draft is accepted",
    cost="Two additions and two comparisons a batch, for the first 2,000 verify steps; "
    "one comparison afterwards.",
    tests=("unit/managers/test_spec_rejected_drafts_warning.py",),
)

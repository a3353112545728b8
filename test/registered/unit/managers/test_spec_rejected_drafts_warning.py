"""One warning from a server whose drafts are hardly ever accepted."""

import unittest
from types import SimpleNamespace

from sglang.srt.managers.scheduler_components import metrics_reporter
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

LOGGER = metrics_reporter.logger.name
STEPS = 2000
BATCH = 8


def make_reporter(algorithm="EAGLE", logs=True):
    """A reporter as the scheduler has it before its first batch."""
    kind = metrics_reporter.SchedulerMetricsReporter
    reporter = kind.__new__(kind)
    algorithm = SpeculativeAlgorithm.from_string(algorithm)
    reporter.scheduler = SimpleNamespace(spec_algorithm=algorithm)
    reporter.is_stats_logging_rank = logs
    reporter.reset_metrics()
    return reporter


def verify(reporter, steps, accept_length):
    """Verify steps in batches, with a mean accept length."""
    for _ in range(steps // BATCH):
        accept_tokens = round(BATCH * accept_length)
        reporter.update_spec_metrics(
            BATCH, accept_tokens - BATCH, num_accept_tokens=accept_tokens
        )


def count_exactly(reporter, steps, correct_drafts):
    """The same for a number of correct drafts that no batch divides."""
    verify(reporter, steps - BATCH, 1)
    reporter.update_spec_metrics(BATCH, correct_drafts, BATCH + correct_drafts)


class TestWarning(CustomTestCase):
    def test_one_paragraph_once(self):
        """Red when rejected drafts go unsaid, or are said with every batch."""
        for algorithm in ("EAGLE", "EAGLE3", "DFLASH", "STANDALONE"):
            with self.subTest(algorithm):
                reporter = make_reporter(algorithm)
                with self.assertLogs(LOGGER, "WARNING") as logs:
                    verify(reporter, 3 * STEPS, 1)
                (record,) = logs.records
                text = record.getMessage()
                self.assertNotIn("\n", text)
                for part in (
                    "first 2000 verify steps is 1.000",
                    algorithm,
                    "lm_head",
                    "LOAD_AUDIT=refuse",
                    "KV cache",
                    "chat template",
                    "block_size",
                    "target_layer_ids",
                    "another target",
                ):
                    self.assertIn(part, text)

    def test_at_the_last_of_the_first_steps(self):
        """Red when a server is judged by its warm-up, or steps are taken for batches."""
        reporter = make_reporter()
        with self.assertNoLogs(LOGGER, "WARNING"):
            verify(reporter, STEPS - BATCH, 1)
        with self.assertLogs(LOGGER, "WARNING"):
            verify(reporter, BATCH, 1)

    def test_the_counters_of_the_log_do_not_matter(self):
        """Red when the reset at every log line starts the count anew."""
        reporter = make_reporter()
        verify(reporter, STEPS // 2, 1)
        reporter.reset_metrics()
        with self.assertLogs(LOGGER, "WARNING"):
            verify(reporter, STEPS // 2, 1)

    def test_just_under_the_limit(self):
        """Red when the limit moves."""
        reporter = make_reporter()
        with self.assertLogs(LOGGER, "WARNING"):
            count_exactly(reporter, STEPS, 99)


class TestSilence(CustomTestCase):
    def test_at_the_limit(self):
        """Red when the limit moves."""
        with self.assertNoLogs(LOGGER, "WARNING"):
            count_exactly(make_reporter(), STEPS, 100)

    def test_a_healthy_server_whatever_comes_later(self):
        """Red when later texts, which may be hard to draft, are judged too."""
        reporter = make_reporter()
        with self.assertNoLogs(LOGGER, "WARNING"):
            verify(reporter, STEPS, 2.5)
            verify(reporter, 2 * STEPS, 1)

    def test_drafts_that_no_model_makes(self):
        """Red when n-grams that find no repetition are called a broken draft."""
        with self.assertNoLogs(LOGGER, "WARNING"):
            verify(make_reporter("NGRAM"), 2 * STEPS, 1)

    def test_a_rank_that_does_not_log(self):
        """Red when every tensor-parallel rank warns."""
        with self.assertNoLogs(LOGGER, "WARNING"):
            verify(make_reporter(logs=False), 2 * STEPS, 1)

    def test_what_is_counted_is_counted_as_ever(self):
        """Red when the guard keeps SGLang from its own counters."""
        reporter = make_reporter()
        reporter.update_spec_metrics(2, 3, 5, 7, 11)
        found = {
            name: getattr(reporter, name)
            for name in (
                "spec_num_forward_ct",
                "spec_num_correct_drafts",
                "spec_num_accept_tokens",
                "spec_num_block_accept_tokens",
                "spec_num_cap_tokens",
            )
        }
        self.assertEqual(list(found.values()), [2, 3, 5, 7, 11], found)


if __name__ == "__main__":
    unittest.main()

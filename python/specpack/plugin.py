"""The entry point that SGLang's plugin framework calls in every process."""

from __future__ import annotations


def register() -> None:
    """Apply the series. Raises SystemExit where it cannot be applied whole.

    The imports are inside because the framework only logs what fails before.
    """
    try:
        from specpack.seams import apply
        from specpack.series import SERIES
    except Exception as error:
        raise SystemExit(f"specpack cannot be loaded: {error!r}") from error
    apply(SERIES)

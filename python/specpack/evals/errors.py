"""What a command of `specpack eval` ends with."""


class EvalError(ValueError):
    """The evaluation cannot be done as asked; the message is one line."""

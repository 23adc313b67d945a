"""Why another system is ahead of Regrow, where it is: written by hand, for an experiment and a column."""

REASONS: dict[tuple[str, str], str] = {}

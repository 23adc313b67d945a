"""Whom a system's own output blames: pure functions over the text that it printed."""

import re
from collections.abc import Iterable

FAILED = r"fail|exitcode|exited|died|killed|hang|hung|stopped|unhealthy|root cause|terminated"
NOT_BLAME = r"closing signal|sending process|received \S+ death signal"
RIGHT, WRONG, BOTH, NOBODY = "the struck one", "a healthy one", "both", "nobody"


def blamed(output: str, struck: int, healthy: Iterable[int], names: dict[int, str]) -> str:
    """`struck` and `healthy` are pids; `names` gives a pattern for each process that the system calls by something else."""
    lines = [line for line in output.splitlines() if re.search(FAILED, line, re.I) and not re.search(NOT_BLAME, line, re.I)]

    def is_named(pid: int) -> bool:
        # As a word: 123 is not in 1234.
        pattern = names.get(pid, rf"(?<![\w.]){pid}(?![\w.])")
        return any(re.search(pattern, line) for line in lines)

    right, wrong = is_named(struck), any(is_named(pid) for pid in healthy)
    return {(True, True): BOTH, (True, False): RIGHT, (False, True): WRONG, (False, False): NOBODY}[right, wrong]

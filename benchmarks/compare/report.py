"""docs/comparison.md, from the finished runs."""

from compare.results import Results


def write(results: Results) -> None:
    print(f"{len(results.lines())} runs in {results.path}")

"""What the page and the README say of other systems is what was measured."""

from pathlib import Path

from compare.contestants import EXPERIMENTS
from compare.report import behind, headline, rows_in
from compare.results import FOLDER, Results
from compare.table import table

ROOT = Path(__file__).parents[2]
LINES = Results(FOLDER / "runs.jsonl").lines()


def test_every_table_of_the_page_is_that_of_the_runs() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text()
    for experiment in EXPERIMENTS:
        rows = rows_in(LINES, experiment.name)
        assert rows, f"{experiment.name} has no runs"
        assert table(rows, experiment.columns) in page, f"{experiment.name}: run `make compare REPORT=1`"


def test_wherever_another_system_is_ahead_the_page_says_why() -> None:
    found = behind(LINES)
    assert "not known" not in found, found
    assert found in (ROOT / "docs" / "comparison.md").read_text()


def test_the_table_of_the_readme_is_that_of_the_runs() -> None:
    assert headline(LINES) in (ROOT / "README.md").read_text(), "paste what `make compare REPORT=readme` prints"

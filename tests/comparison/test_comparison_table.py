"""The plan, the tables, and whom an output blames."""

from pathlib import Path

import pytest
from compare.blame import BOTH, NOBODY, RIGHT, WRONG, blamed
from compare.experiment import Column, Entry, Experiment
from compare.plan import Key, affordable, left_s, quick, rounds
from compare.report import _short
from compare.results import Results
from compare.table import Row, beaten, best_of, cell, rows_of, table

PAUSE = Column(title="pause, s", key="pause_s", is_best="low")
SHARE = Column(title="share", key="share", is_best="high")


def experiment(name: str, in_quick: bool = True) -> Experiment:
    return Experiment(name=name, title=name, claim="", columns=(PAUSE, SHARE), entries=lambda _: [], in_quick=in_quick)


def entry(name: str, settings: str, expected_s: float) -> Entry:
    return Entry(name=name, settings=settings, expected_s=expected_s, run=lambda folder, repetition: {})


A = experiment("a")
SHORT, LONG, PLAIN = entry("x", "best", 10.0), entry("y", "best", 50.0), entry("x", "default", 95.0)


def keys(due: list) -> list[Key]:
    return [one.key for one in due]


def test_short_ones_run_five_times_long_ones_three_times_and_defaults_once() -> None:
    found = rounds([(A, [SHORT, LONG, PLAIN])], {})
    count = {which: sum(one.entry is which for due in found for one in due) for which in (SHORT, LONG, PLAIN)}
    assert count == {SHORT: 5, LONG: 3, PLAIN: 1}
    assert found[0][-1].entry is PLAIN


def test_what_an_entry_took_before_decides_how_often_it_runs() -> None:
    found = rounds([(A, [SHORT])], {("a", "x", "best", 0): 40.0})
    assert len(found) == 3


def test_the_order_changes_from_round_to_round() -> None:
    entries = [entry(name, "best", 30.0) for name in "abcdef"]
    orders = [[one.entry.name for one in due] for due in rounds([(A, entries)], {})]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list("abcdef") for order in orders)


def test_a_budget_cuts_the_last_rounds_and_counts_what_is_done() -> None:
    planned = rounds([(A, [SHORT, LONG, PLAIN])], {})
    chosen = affordable(planned, {}, 215.0)
    assert keys(chosen)[:3] == keys(planned[0])
    assert len(chosen) == 5  # 155 s, then one more of each
    done = {("a", "y", "best", 0): 50.0}
    assert left_s(affordable(planned, done, 215.0), done) == 165.0


def test_a_quick_look_leaves_out_defaults_and_some_experiments() -> None:
    found = quick([(A, [SHORT, PLAIN]), (experiment("b", in_quick=False), [LONG])])
    assert [(one.name, list(entries)) for one, entries in found] == [("a", [SHORT])]


def row(name: str, *pauses: object, settings: str = "best") -> Row:
    return Row(name=name, settings=settings, runs=tuple({"pause_s": pause} for pause in pauses))


def test_a_cell_is_the_median_with_its_range_and_words_are_counted() -> None:
    assert cell(row("x", 1.0, 3.0, 2.0), PAUSE) == "2.00 (1.00 to 3.00)"
    assert cell(row("x", 1.0), PAUSE) == "1.00"
    assert cell(row("x", 1.0, "> 90 s", 2.0), PAUSE) == "1.50 (1.00 to 2.00); > 90 s (1 of 3)"
    assert cell(row("x", "> 90 s", "> 90 s"), PAUSE) == "> 90 s"
    assert cell(row("x", None), PAUSE) == "-"


def test_the_best_is_bold_and_a_word_is_never_the_best() -> None:
    rows = [row("Regrow", 0.5), row("y", 0.25), row("z", "> 90 s"), row("w", 0.1, settings="control")]
    assert best_of(rows, PAUSE) == 0.25
    text = table(rows, (PAUSE,))
    assert "| y | best | 1 | **0.25** |" in text
    assert text.count("**") == 2
    assert best_of([row("x", 1.0), row("y", 1.0)], PAUSE) is None


def test_whoever_is_ahead_of_us_is_named_once_it_is_clear() -> None:
    found = beaten(A, [row("Regrow", 0.5), row("Regrow", 0.6, settings="default"), row("y", 0.25)], "Regrow")
    assert [(one.column.key, one.winner.name, one.ours.settings) for one in found] == [("pause_s", "y", "best")]
    assert beaten(A, [row("Regrow", 0.5), row("y", 0.499)], "Regrow") == []
    assert beaten(A, [row("Regrow", "> 90 s"), row("y", 80.0)], "Regrow") != []


def test_default_settings_stand_beside_default_ones() -> None:
    rows = [row("Regrow", 0.2), row("Regrow", 0.6, settings="default"), row("y", 0.1), row("y", 0.5, settings="default")]
    found = beaten(A, rows, "Regrow")
    assert [(one.ours.settings, one.winner.settings) for one in found] == [("best", "best"), ("default", "default")]
    assert beaten(A, [row("Regrow", 0.6, settings="default"), row("y", 0.5)], "Regrow") == []


def test_where_more_is_better_a_word_is_still_the_worst() -> None:
    rows = [Row(name=name, settings="best", runs=({"share": share},)) for name, share in (("Regrow", 0.5), ("y", "> 90 s"))]
    assert best_of(rows, SHARE) == 0.5
    assert beaten(A, rows, "Regrow") == []


def test_a_run_that_did_not_train_is_counted() -> None:
    mixed = Row(name="z", settings="best", runs=({"pause_s": 1.0}, {"failed": "no such file"}))
    assert "| z | best | 2, 1 did not train |" in table([mixed], (PAUSE,))


def test_in_short_keeps_what_happened_now_and_then() -> None:
    assert _short(row("x", 1.0, "> 90 s", 2.0), PAUSE) == "1.50; > 90 s (1 of 3)"
    assert _short(row("x", 1.0, 3.0), PAUSE) == "2.00"


def test_runs_of_another_machine_are_no_runs_of_this_one(tmp_path: Path) -> None:
    results, two, four = Results(tmp_path / "runs.jsonl"), {"cores": 2, "commit": "a"}, {"cores": 4, "commit": "a"}
    results.add(("a", "x", "best", 0), {"pause_s": 1.0}, 10.0, two)
    assert results.took({"cores": 2, "commit": "b"}) == {("a", "x", "best", 0): 10.0}
    assert results.took(four) == {}
    results.path.write_text(results.path.read_text().replace('"at": "2', '"at": "1'))
    results.add(("a", "y", "best", 0), {"pause_s": 2.0}, 10.0, four)
    assert [line["name"] for line in results.lines()] == ["y"]


def test_one_that_never_trained_says_so() -> None:
    failed = Row(name="z", settings="best", runs=({"failed": "no such file"},))
    assert "| z | best | 1 | did not train |" in table([failed], (PAUSE,))


def test_results_outlive_an_interruption(tmp_path: Path) -> None:
    results = Results(tmp_path / "runs.jsonl")
    results.add(("a", "x", "best", 0), {"pause_s": 1.23456789}, 10.0, {})
    results.add(("a", "y", "best", 0), {"failed": "why"}, 20.0, {})
    with results.path.open("a") as file:
        file.write('{"experiment": "a", "na')
    assert results.took({}) == {("a", "x", "best", 0): 10.0}  # what failed is tried again
    rows = rows_of(results.lines(), "a", [("y", "best"), ("x", "best")])
    assert [one.name for one in rows] == ["y", "x"]
    assert rows[1].runs == ({"pause_s": 1.235},)


@pytest.mark.parametrize(
    ("output", "whom"),
    [
        ("failed (exitcode: -9) local_rank: 1 (pid: 123) of binary", RIGHT),
        ("failed (exitcode: 1) local_rank: 0 (pid: 456) of binary", WRONG),
        ("pid: 123 failed\npid: 456 failed", BOTH),
        ("Sending process 456 closing signal SIGTERM\npid 123 failed", RIGHT),
        ("pid 1234 failed; 123 is well", RIGHT),
        ("pid 1234 failed", NOBODY),
        ("all is well with 123", NOBODY),
    ],
)
def test_blame_is_read_from_lines_that_speak_of_a_failure(output: str, whom: str) -> None:
    assert blamed(output, 123, [456], {}) == whom


def test_a_system_may_have_names_of_its_own() -> None:
    names = {123: r"\br1\.\d+ (killed|hangs)", 456: r"\br0\.\d+ (killed|hangs)"}
    assert blamed("roster 1.2 (r1.0 killed by SIGKILL): r0.0, r2.0", 123, [456], names) == RIGHT

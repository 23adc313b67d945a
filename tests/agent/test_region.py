"""The region stays at the bottom, and what scrolls by above it is what it would have been without."""

from hypothesis import given
from hypothesis import strategies as st
from screen import Screen

from regrow.agent.region import Region, Row

COLUMNS, LINES = 20, 12


def rows(*texts: str) -> list[Row]:
    return [Row(text=text, cells=len(text)) for text in texts]


line = st.text(alphabet="abc xyz", max_size=50).map(lambda text: f"{text}\n".encode())
output = st.lists(line, max_size=6).map(b"".join)
frame = st.lists(st.text(alphabet="#|-", min_size=1, max_size=COLUMNS - 1), max_size=LINES // 2).map(
    lambda texts: rows(*texts)
)


@given(st.lists(st.tuples(output, frame), max_size=12))
def test_output_reaches_the_screen_as_if_there_were_no_region(moments: list[tuple[bytes, list[Row]]]) -> None:
    region, screen, plain = Region(), Screen(COLUMNS, LINES), Screen(COLUMNS, LINES)
    for said, drawn in moments:
        screen.feed(region.compose(said, drawn, COLUMNS))
        plain.feed(said)
        above = len(screen.text) - len(drawn)
        assert screen.text[above:] == [row.text for row in drawn]
        assert [row for row in screen.text[:above] if row] == [row for row in plain.text if row]


def test_a_progress_bar_overwrites_itself_above_the_region() -> None:
    region, screen = Region(), Screen()
    screen.feed(region.compose(b"[r0] begins\n[r0]  9%\r", rows("view"), 80))
    assert screen.text == ["[r0] begins", "[r0]  9%", "view"]
    screen.feed(region.compose(b"", rows("view", "two"), 80))
    assert screen.text == ["[r0] begins", "[r0]  9%", "view", "two"]
    screen.feed(region.compose(b"[r0] 80%\r", rows("view"), 80))
    assert screen.text == ["[r0] begins", "[r0] 80%", "view"]
    screen.feed(region.compose(b"[r1] hi\n", rows("view"), 80))
    assert screen.text == ["[r0] begins", "[r1] hi", "view"], "what is shorter leaves nothing of what was longer"


def test_a_progress_bar_goes_on_where_it_was_once_the_region_is_gone() -> None:
    region, screen = Region(), Screen()
    screen.feed(region.compose(b"[r0]  9%\r", rows("view"), 80))
    screen.feed(region.compose(b"", (), 80))
    assert screen.text == ["[r0]  9%"]
    screen.feed(region.compose(b"[r0] done\n", (), 80))
    assert screen.text == ["[r0] done"]
    screen.feed(region.compose(b"[r0]  9%\r", (), 80) + region.compose(b"", rows("view"), 80))
    assert screen.text == ["[r0] done", "[r0]  9%", "view"]


def test_a_terminal_that_becomes_narrower_loses_no_line_and_keeps_nothing_of_the_region() -> None:
    region, screen = Region(), Screen(40, 12)
    screen.feed(region.compose(b"first\nsecond\n", rows("a" * 39, "b" * 21, "c"), 40))
    screen.resize(20)
    assert len(screen.text) == 2 + 2 + 2 + 1, "the terminal has wrapped the region"
    screen.feed(region.compose(b"third\n", rows("new"), 20))
    assert screen.text == ["first", "second", "third", "new"]


def test_what_somebody_else_wrote_below_is_left_alone() -> None:
    region, screen = Region(), Screen()
    screen.feed(region.compose(b"first\n", rows("old"), 80))
    screen.feed(b"$ echo hello\nhello\n")
    region.forget()
    screen.feed(region.compose(b"second\n", rows("new"), 80))
    assert screen.text == ["first", "old", "$ echo hello", "hello", "second", "new"]


def test_colours_that_output_left_behind_end_before_the_region() -> None:
    assert b"\x1b[31mred\n\x1b[0mview" in Region().compose(b"\x1b[31mred\n", rows("view"), 80)

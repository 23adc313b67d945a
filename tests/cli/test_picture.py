"""The live view as text: what it says at several sizes, and that it fits at all of them."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from regrow.agent.region import Row
from regrow.cli.picture import picture
from regrow.cli.scene import Happening, ReplicaScene, Scene

SCENE = Scene(
    job="a",
    step=37,
    steps=120,
    loss=2.34831,
    rate=4.13,
    elapsed_s=3725.9,
    restarts=2,
    max_restarts=200,
    is_coordinator_away=False,
    replicas=(
        ReplicaScene(name="r0.0", pid=18526, lanes=(0, 1), state="computing step 37 lane 1", mood="well"),
        ReplicaScene(name="r1.2", pid=900, lanes=(2, 3, 5), state="waiting for the others in step 37", mood="well"),
        ReplicaScene(name="r2.1", pid=None, lanes=None, state="restarting in 2.0 s", mood="coming"),
    ),
    happenings=(
        Happening(clock="12:00:01", text="roster 1.1 (every replica is ready): r0.0, r1.0, r2.0", is_routine=True),
        Happening(clock="12:00:05", text="r2.0 killed by SIGKILL", is_routine=False),
        Happening(clock="12:00:06", text="roster 1.2 (r2.0 killed by SIGKILL): r0.0, r1.2", is_routine=True),
        Happening(clock="12:00:07", text="r2.1 starts in 2 s: restart 2 of 20 within 600 s", is_routine=True),
    ),
)


def text(scene: Scene, columns: int, lines: int = 24) -> list[str]:
    rows = picture(scene, columns, lines, is_coloured=False)
    assert len(rows) <= max(1, lines // 2)
    assert all(row.cells == cell_len(row.text) <= max(1, columns - 1) for row in rows)
    return [row.text for row in rows]


def test_at_100_columns() -> None:
    assert text(SCENE, 100) == [
        "a | step 37 of 120 | loss 2.3483 | 4.1 steps/s | 1:02:05 | 2 of 200 restarts | coordinator here",
        "  r0.0  18526  lanes 0-1    computing step 37 lane 1",
        "  r1.2    900  lanes 2-3 5  waiting for the others in step 37",
        "  r2.1      -  -            restarting in 2.0 s",
        "  12:00:05 r2.0 killed by SIGKILL",
        "  12:00:06 roster 1.2 (r2.0 killed by SIGKILL): r0.0, r1.2",
        "  12:00:07 r2.1 starts in 2 s: restart 2 of 20 within 600 s",
    ]


def test_at_40_columns_the_facts_take_more_rows_and_long_ones_are_cut() -> None:
    assert text(SCENE, 40) == [
        "a | step 37 of 120 | loss 2.3483",
        "  4.1 steps/s | 1:02:05",
        "  2 of 200 restarts | coordinator here",
        "  r0.0  18526  lanes 0-1    computin...",
        "  r1.2    900  lanes 2-3 5  waiting ...",
        "  r2.1      -  -            restarti...",
        "  12:00:05 r2.0 killed by SIGKILL",
        "  12:00:06 roster 1.2 (r2.0 killed b...",
        "  12:00:07 r2.1 starts in 2 s: resta...",
    ]


def test_on_a_few_lines_the_step_comes_first() -> None:
    assert text(SCENE, 100, lines=3) == text(SCENE, 100)[:1]
    assert text(SCENE, 10, lines=1) == ["a"]


def test_of_many_replicas_those_in_trouble_are_shown() -> None:
    many = [
        ReplicaScene(name=f"r{number}.0", pid=number, lanes=(number,), state="computing", mood="well")
        for number in range(64)
    ]
    many[40] = ReplicaScene(name="r40.0", pid=40, lanes=(40,), state="hung in step 3", mood="ill")
    rows = text(msgspec.structs.replace(SCENE, replicas=tuple(many)), 100)
    assert len(rows) == 12
    assert [row for row in rows if "hung in step 3" in row]
    assert rows[8] == "  and 57 more, 57 of them well"
    assert rows[-1].endswith("restart 2 of 20 within 600 s")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": None}, "a | starting | "),
        ({"steps": None}, " step 37 | "),
        ({"loss": None}, "step 37 of 120 | 4.1 steps/s"),
        ({"loss": math.nan}, "loss is not finite"),
        ({"loss": 0.0}, "loss 0.0000"),
        ({"loss": 1.5e-7}, "loss 1.500e-07"),
        ({"loss": -2e9}, "loss -2.000e+09"),
        ({"rate": None}, "loss 2.3483 | 1:02:05"),
        ({"rate": 0.125}, "8.0 s/step"),
        ({"rate": 0.0}, "standing still"),
        ({"is_coordinator_away": True}, "coordinator away"),
    ],
)
def test_the_headline(change: dict[str, object], words: str) -> None:
    assert words in text(msgspec.structs.replace(SCENE, **change), 120)[0]


def test_what_would_steer_the_terminal_or_is_wide_does_no_harm() -> None:
    odd = Happening(clock="12:00:08", text="ValueError: \x1b[2J\r\tend 学习学习学习学习学习", is_routine=False)
    scene = msgspec.structs.replace(SCENE, happenings=(odd,), job="a\x1b[2J")
    assert text(scene, 47)[-1] == "  12:00:08 ValueError: ?[2J  end 学习学习学..."
    assert text(scene, 46)[-1] == "  12:00:08 ValueError: ?[2J  end 学习学习 ...", "half of a wide one is a space"
    assert text(scene, 46)[0].startswith("a?[2J | step 37")


def test_colours_change_nothing_but_the_colours() -> None:
    plain = picture(SCENE, 100, 24, is_coloured=False)
    coloured = picture(SCENE, 100, 24, is_coloured=True)
    assert "\x1b" not in "".join(row.text for row in plain)
    assert [row.cells for row in coloured] == [row.cells for row in plain]
    assert coloured[1].text == "  r0.0  18526  lanes 0-1    \x1b[32mcomputing step 37 lane 1\x1b[0m"


replica = st.builds(
    ReplicaScene,
    name=st.text(max_size=8),
    pid=st.none() | st.integers(1, 99999),
    lanes=st.none() | st.lists(st.integers(0, 99), unique=True, max_size=30).map(tuple),
    state=st.text(max_size=60),
    mood=st.sampled_from(["well", "coming", "ill", "out"]),
)
happening = st.builds(Happening, clock=st.just("12:00:00"), text=st.text(max_size=150), is_routine=st.booleans())


@given(st.lists(replica, max_size=20), st.lists(happening, max_size=8), st.integers(1, 200), st.integers(1, 60))
def test_it_fits_every_screen(replicas: list[ReplicaScene], happenings: list[Happening], columns: int, lines: int) -> None:
    scene = msgspec.structs.replace(SCENE, replicas=tuple(replicas), happenings=tuple(happenings))
    rows: list[Row] = picture(scene, columns, lines, is_coloured=True)
    assert 1 <= len(rows) <= max(1, lines // 2)
    assert all(row.cells <= max(1, columns - 1) and "\n" not in row.text for row in rows)


def test_a_job_that_waits_says_so_in_its_first_row() -> None:
    waits = msgspec.structs.replace(SCENE, waits="2 of 3 are here")
    assert "step 37 of 120 | waits: 2 of 3 are here |" in text(waits, 200)[0]

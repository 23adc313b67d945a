"""The launcher's terminal, on real pseudoterminals: the region below the output, and every way to lose it."""

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from screen import Screen, Viewer

from regrow.agent.region import Row
from regrow.agent.terminal import STDERR, STDOUT, Frame, Terminal


def frame(*texts: str) -> Frame:
    return lambda columns, lines: [Row(text=text, cells=len(text)) for text in texts]


class Desk:
    """A pseudoterminal, somebody who reads it, and a pipe."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.reader, self.writer = os.pipe()
        self.viewer = Viewer(self.master)
        self.pipe = Viewer(self.reader)

    @property
    def screen(self) -> list[str]:
        return Screen().feed(self.viewer.look()).text

    def wait(self, rows: list[str]) -> None:
        self.viewer.wait(lambda _: self.screen == rows, str(rows))

    def close(self) -> None:
        for fd in (self.master, self.slave, self.reader, self.writer):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_output_scrolls_by_above_the_newest_frame_and_stays_when_it_is_gone(desk: Desk) -> None:
    terminal = Terminal(desk.slave, desk.slave)
    assert terminal.is_screen
    terminal.write(STDOUT, b"[r0] one\n")
    terminal.show(frame("step 1", "r0 computing"))
    desk.wait(["[r0] one", "step 1", "r0 computing"])
    terminal.say("r1.0 was killed")
    terminal.show(frame("step 2"))
    desk.wait(["[r0] one", "regrow: r1.0 was killed", "step 2"])
    terminal.write(STDERR, b"".join(b"[r1] line %d\n" % number for number in range(100)))
    terminal.close()
    assert desk.screen == ["[r0] one", "regrow: r1.0 was killed", *(f"[r1] line {number}" for number in range(100))]


def test_output_that_goes_elsewhere_has_nothing_of_the_region(desk: Desk) -> None:
    terminal = Terminal(desk.writer, desk.slave)
    terminal.show(frame("step 1"))
    desk.wait(["step 1"])
    terminal.write(STDOUT, b"[r0] one\n")
    terminal.say("two")
    desk.wait(["regrow: two", "step 1"])
    terminal.close()
    assert desk.pipe.look() == b"[r0] one\n"
    assert desk.screen == ["regrow: two"]


def test_a_screen_is_a_terminal_to_which_nobody_else_may_write(desk: Desk, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        assert Terminal(log.fileno(), desk.slave).is_screen
        assert not Terminal(desk.slave, log.fileno()).is_screen
    assert not Terminal(desk.writer, desk.slave).is_screen, "regrow run ... | tee log"
    os.close(desk.reader)
    assert not Terminal(desk.reader, desk.slave).is_screen, "its stdout is closed"


def test_without_a_frame_nothing_but_the_output_is_written(desk: Desk) -> None:
    terminal = Terminal(desk.writer, desk.writer)
    assert not terminal.is_screen
    terminal.write(STDOUT, b"[r0] \x1b[31mone\r")
    terminal.say("two\nthree", is_routine=True)
    terminal.close()
    assert desk.pipe.look() == b"[r0] \x1b[31mone\rregrow: two\nregrow: three\n"


def test_a_quiet_terminal_leaves_out_what_is_routine_and_still_knows_it(desk: Desk) -> None:
    terminal = Terminal(desk.writer, desk.writer, is_quiet=True)
    terminal.say("roster 1.1", is_routine=True)
    terminal.say("r1.0 was killed")
    terminal.write(STDOUT, b"[r0] mine\n")
    terminal.close()
    assert desk.pipe.look() == b"regrow: r1.0 was killed\n[r0] mine\n"
    assert [(said.text, said.is_routine) for said in terminal.said] == [("roster 1.1", True), ("r1.0 was killed", False)]


def test_a_terminal_that_goes_away_takes_only_the_region_with_it(desk: Desk) -> None:
    terminal = Terminal(desk.writer, desk.slave)
    terminal.show(frame("step 1"))
    desk.wait(["step 1"])
    os.close(desk.master)
    terminal.show(frame("step 2"))
    terminal.say("nobody sees this")
    terminal.write(STDOUT, b"[r0] somebody reads this\n")
    desk.pipe.wait(lambda seen: seen == b"[r0] somebody reads this\n", "the output")
    terminal.show(frame("step 3"))
    terminal.write(STDOUT, b"[r0] and this\n")
    desk.pipe.wait(lambda seen: seen == b"[r0] somebody reads this\n[r0] and this\n", "more of it")
    terminal.close()
    assert not terminal._thread.is_alive()


def test_a_frame_that_fails_ends_the_view_and_nothing_else(desk: Desk) -> None:
    def broken(columns: int, lines: int) -> Sequence[Row]:
        raise ZeroDivisionError("no columns")

    terminal = Terminal(desk.slave, desk.slave)
    terminal.show(frame("step 1"))
    desk.wait(["step 1"])
    terminal.show(broken)
    desk.viewer.wait(lambda seen: b"live view ended" in seen, "a word about it")
    terminal.show(frame("step 2"))
    terminal.write(STDOUT, b"[r0] goes on\n")
    terminal.close()
    *told, last = desk.screen
    assert last == "[r0] goes on" and "".join(told).endswith("the live view ended: ZeroDivisionError('no columns')")


def test_a_terminal_that_was_stopped_gets_all_the_output_and_only_the_newest_frame(desk: Desk) -> None:
    terminal = Terminal(desk.slave, desk.slave)
    for number in range(3000):  # far more than the kernel keeps for somebody who does not read
        terminal.write(STDOUT, b"[r0] %d %s\n" % (number, b"." * 60))
        terminal.show(frame(f"frame {number}"))
    desk.viewer.wait(lambda seen: b"frame 2999" in seen, "the newest frame")
    assert len(re.findall(rb"frame \d+", desk.viewer.seen)) < 100
    terminal.close()
    assert desk.screen == [f"[r0] {number} {'.' * 60}" for number in range(3000)]


def test_before_a_stop_the_view_is_gone_and_nothing_is_written_until_it_is_over(desk: Desk) -> None:
    terminal = Terminal(desk.slave, desk.slave)
    terminal.show(frame("step 1"))
    desk.wait(["step 1"])
    terminal.step_aside()
    terminal.write(STDOUT, b"[r0] meanwhile\n")
    terminal.show(frame("step 2"))
    os.write(desk.slave, b"$ ls\n")
    desk.wait(["$ ls"])
    terminal.come_back()
    desk.wait(["$ ls", "[r0] meanwhile", "step 2"])
    terminal.close()


def test_after_a_stop_unasked_the_view_begins_anew_below_what_the_shell_wrote(desk: Desk) -> None:
    terminal = Terminal(desk.slave, desk.slave)
    terminal.show(frame("step 1"))
    desk.wait(["step 1"])
    os.write(desk.slave, b"$ ls\n")
    terminal.displaced()
    terminal.show(frame("step 2"))
    desk.wait(["step 1", "$ ls", "step 2"])
    terminal.close()


def test_a_slow_terminal_gets_all_of_it_before_the_end(desk: Desk) -> None:
    """It takes far longer than the wait for one that takes nothing."""
    seen: list[bytes] = []

    def read_slowly() -> None:
        while not b"".join(seen[-2:]).endswith(b"the end\r\n"):
            seen.append(os.read(desk.master, 512))
            time.sleep(0.01)

    terminal = Terminal(desk.slave, desk.slave)
    for number in range(1000):
        terminal.write(STDOUT, b"[r0] %d %s\n" % (number, b"." * 60))
    terminal.write(STDERR, b"the end\n")
    slow = threading.Thread(target=read_slowly, daemon=True)
    slow.start()
    terminal.close(within_s=0.5)
    assert not terminal._thread.is_alive(), "it was left behind with the rest"
    slow.join(60)
    assert not slow.is_alive() and b"".join(seen).count(b"\n") == 1001


def test_a_terminal_that_takes_nothing_does_not_hold_up_the_end(desk: Desk) -> None:
    terminal = Terminal(desk.slave, desk.slave)
    terminal.write(STDOUT, b"x" * 100_000)
    terminal.close(within_s=0.1)
    assert terminal._thread.is_alive(), "it was left behind"

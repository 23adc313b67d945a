"""Stories made up line by line."""

from compare.story import Line, Story, Strike


class Teller:
    """Notes what processes do; each is called by its pid, and its replica is the pid's last digit."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.strikes: list[Strike] = []
        self.gone: dict[int, float] = {}

    def note(self, at: float, what: str, pid: int, step: int) -> None:
        self.lines.append(Line(at=at, what=what, replica=pid % 10, pid=pid, step=step))

    def step(self, at: float, step: int, *pids: int, batches: int = 3, took: float = 0.8) -> None:
        """All of them do this step and commit it, at `at` plus what it took."""
        for pid in pids:
            self.note(at, "begin", pid, step)
            for number in range(batches):
                self.note(at + 0.1 * (number + 1), "batch", pid, step)
            self.note(at + took, "commit", pid, step)

    def kill(self, at: float, pid: int) -> Strike:
        strike = Strike(at=at, what="SIGKILL", pid=pid, replica=pid % 10)
        self.strikes.append(strike)
        self.gone[pid] = at
        return strike

    def story(self, until: float) -> Story:
        return Story(lines=sorted(self.lines, key=lambda line: line.at), until=until, strikes=self.strikes, gone=self.gone)


def healed() -> tuple[Story, Strike]:
    """10 and 11 train, a step a second. 11 dies in step 5 with two microbatches done; 10 computes the rest, and 21 is there
    from step 7 on."""
    teller = Teller()
    for step in range(5):
        teller.step(float(step), step, 10, 11)
    teller.note(5.0, "begin", 11, 5)
    teller.note(5.1, "batch", 11, 5)
    teller.note(5.2, "batch", 11, 5)
    strike = teller.kill(5.25, 11)
    teller.step(5.0, 5, 10, batches=6, took=1.8)
    teller.step(6.8, 6, 10, batches=6, took=1.2)
    teller.step(8.0, 7, 10, 21)
    teller.step(9.0, 8, 10, 21)
    return teller.story(until=10.0), strike


def restarted() -> tuple[Story, Strike]:
    """10 and 11 train and save at step 2. 11 dies in step 5 and 10 ends of it; 20 and 21 begin again at step 3."""
    teller = Teller()
    for step in range(5):
        teller.step(float(step), step, 10, 11)
    teller.note(5.0, "begin", 10, 5)
    teller.note(5.1, "batch", 10, 5)
    strike = teller.kill(5.25, 11)
    teller.gone[10] = 5.5
    for step in range(3, 8):
        teller.step(7.0 + step, step, 20, 21)
    return teller.story(until=15.0), strike

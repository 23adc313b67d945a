"""Following a journal: every line once, across rotations, and only the newest of a flood."""

from pathlib import Path

from regrow.core.records import Fact, Gap, JobEnded
from regrow.shell.follower import Follower
from regrow.shell.journal import Journal


def facts(follower: Follower) -> list[Fact]:
    return [line.what for line in follower.read()]


def gaps(*numbers: int) -> list[Fact]:
    return [Gap(lost=number) for number in numbers]


def test_each_line_is_seen_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "agent.jsonl")
    assert facts(follower) == [], "there is no such file yet"
    journal = Journal(tmp_path, "agent")
    journal.write(Gap(lost=1))
    assert facts(follower) == gaps(1)
    assert facts(follower) == []
    journal.write(Gap(lost=2))
    journal.write(Gap(lost=3))
    assert facts(follower) == gaps(2, 3)


def test_a_line_that_is_half_written_is_seen_once_it_is_whole(tmp_path: Path) -> None:
    Journal(tmp_path, "agent").write(Gap(lost=1))
    path = tmp_path / "agent.jsonl"
    line = path.read_bytes()
    path.write_bytes(line[:20])
    follower = Follower(path)
    assert facts(follower) == []
    with path.open("ab") as file:
        file.write(line[20:] + b"what is no line\n" + line)
    assert facts(follower) == gaps(1, 1)


def test_nothing_is_missed_when_the_journal_is_rotated(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "agent", max_bytes=300)
    follower = Follower(tmp_path / "agent.jsonl")
    seen: list[Fact] = []
    for number in range(20):
        journal.write(Gap(lost=number))
        seen += facts(follower)
    assert (tmp_path / "agent.jsonl.2").exists()
    assert seen == gaps(*range(20))


def test_only_the_newest_part_of_a_flood_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.0")
    follower = Follower(tmp_path / "r0.0.jsonl")
    journal.write(Gap(lost=0))
    assert facts(follower) == gaps(0)
    for number in range(1, 5000):
        journal.write(Gap(lost=number))
    seen = facts(follower)
    assert 100 < len(seen) < 4000 and seen == gaps(*range(5000 - len(seen), 5000))


def test_only_what_is_wanted_is_parsed(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "r0.0")
    journal.write(Gap(lost=1))
    journal.write(JobEnded(outcome="finished", why="done"))
    assert facts(Follower(tmp_path / "r0.0.jsonl", wanted=b'"JobEnded"')) == [JobEnded(outcome="finished", why="done")]

"""Claim: every member knows of a death within 50 ms among 1,000 of them, and within 500 ms among 10,000.

One coordinator process with its real server, store (fsync included) and journal; as many members as asked for, simulated in
a second process by real sockets that come through the real door. Milliseconds, medians over deaths:

    floor      in turns with it: a bare loop writes as many bytes to as many sockets, and the members' process reads them
    told       a member's sockets close and its agent reports it .. the last member has the new roster's bytes; every member
               has just said how fast it is, which the coordinator hears first
    applied    what one member takes to make the roster of them; each does so in its own process
    entered    every member says that it entered the new roster .. the coordinator has heard all of them

And of the coordinator alone: beats a second on one core (by its CPU time), its CPU at one beat a second a member, and its
memory a member.

Before that: founded, from the first member at the door until the last one has the first roster, which is told whole.

    python benchmarks/control.py [--members 10,100,1000,10000] [--deaths 9] [--pace 5] [--json FILE]
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import resource
import secrets
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from control_coordinator import coordinate, shout
from control_members import Crowd, Members

from regrow.core.change import apply
from regrow.core.messages import Amend, Beat, Entered, Exited, Push, Timed
from regrow.core.roster import Member, Roster
from regrow.wire.codec import decode
from regrow.wire.framing import frame

HERE = Path(__file__).parent
SPAWN = multiprocessing.get_context("spawn")
BEATS = 20_000
"""At least so many, each on its own."""
SPARE_FILES = 100
NAMES = ("floor", "told", "applied", "entered")
OTHERS = ("beats_a_second", "cpu_share", "kib_each", "change_bytes", "founded_s")


def limit(members: int) -> int:
    """So many of them, or fewer where this machine allows no more open files: two sockets each, one for the floor."""
    need = 2 * members + SPARE_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # only root may have more than the hard limit
        hard = max(hard, need)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if need > hard:
        print(f"{members} members need {need} open files, and `ulimit -Hn` allows {hard}: fewer are measured")
    return min(members, (hard - SPARE_FILES) // 2)


class Floor:
    """The same members, and a server that does nothing but write."""

    def __init__(self, count: int) -> None:
        self._pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=shout, args=(there, count))
        self._process.start()
        self._crowd = Crowd(self._pipe.recv())
        for _ in range(count):
            self._crowd.add(self._crowd.connect())

    def ms(self, data: bytes) -> float:
        began = time.monotonic()
        self._pipe.send(data)
        return 1e3 * (self._crowd.wait_one_each() - began)

    def close(self) -> None:
        self._pipe.send(b"")
        self._process.join()
        self._crowd.close()


class Job:
    """A coordinator in its process, and members in this one."""

    def __init__(self, folder: Path, count: int) -> None:
        names, token = tuple(f"r{number}" for number in range(count)), secrets.token_hex(32)
        self._pipe, there = SPAWN.Pipe()
        self._process = SPAWN.Process(target=coordinate, args=(there, folder, names, count, token))
        self._process.start()
        port = self._pipe.recv()
        _, self._bytes_before = self._usage()
        began = time.monotonic()
        self.members = Members(port, token, names, count)
        self.founded_s = self.members.wait_one_each() - began
        self._roster = self._whole()
        self._enter()
        _, bytes_after = self._usage()
        self.kib_each = (bytes_after - self._bytes_before) / 1024 / count

    def death_ms(self, member: Member) -> dict[str, float]:
        for number, other in enumerate(self.members.of):  # as now and then in a job that trains, and all at once
            self.members.send(other, Timed(member=other, lane_s=1 + number % 10 / 100, step=self._roster.version.n))
        began = time.monotonic()
        self.members.die(member)
        self._pipe.send(Exited(member=member, how="killed by SIGKILL", clean=False, never_joined=False))
        told = self.members.wait_one_each()
        (payload,) = set(self.members.last.values())
        message = decode(payload)
        assert isinstance(message, Amend), message
        at = time.monotonic()
        roster = apply(self._roster, message.change)
        applied = time.monotonic()
        assert isinstance(roster, Roster) and roster.members == tuple(sorted(self.members.of)), roster
        self._roster = roster
        self.change_bytes = len(payload)
        return {"told": 1e3 * (told - began), "applied": 1e3 * (applied - at), "entered": 1e3 * self._enter()}

    def beats_a_second(self) -> float:
        rounds = -(-BEATS // len(self.members.of))
        before, _ = self._usage()
        for _ in range(rounds):
            for member in self.members.of:
                self.members.send(member, Beat(member=member))
            self._ping()
        after, _ = self._usage()
        return rounds * len(self.members.of) / (after - before)

    def cpu_share(self, pace_s: float) -> float:
        """Of one core, while every member beats once a second."""
        everyone = list(self.members.of)
        before, _ = self._usage()
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < pace_s:
            while sent < passed * len(everyone):
                member = everyone[sent % len(everyone)]
                self.members.send(member, Beat(member=member))
                sent += 1
            time.sleep(0.005)
        after, _ = self._usage()
        return (after - before) / pace_s

    def close(self) -> None:
        self.members.close()
        self._pipe.send("over")
        self._process.join()

    def _whole(self) -> Roster:
        message = decode(next(iter(self.members.last.values())))
        assert isinstance(message, Push), message
        self.members.last.clear()
        return message.roster

    def _enter(self) -> float:
        began = time.monotonic()
        for member in self.members.of:
            self.members.send(member, Entered(member=member, version=self._roster.version, step=0))
        self._ping()
        return time.monotonic() - began

    def _ping(self) -> None:
        """The coordinator has dealt with all that was sent to it before."""
        self._pipe.send("ping")
        assert self._pipe.recv() == "pong"

    def _usage(self) -> tuple[float, int]:
        self._pipe.send("usage")
        cpu_s, size_bytes = self._pipe.recv()
        return cpu_s, size_bytes


def measure(count: int, deaths: int, pace_s: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="regrow-control-") as folder:
        job, floor = Job(Path(folder), count), Floor(count)
        job.death_ms(Member("r0", 0))  # the first of anything takes longer
        data = frame(bytes(job.change_bytes))
        victims = [Member(f"r{number}", 0) for number in range(1, 1 + min(deaths, count // 2))]
        rows = [{"floor": floor.ms(data), **job.death_ms(victim)} for victim in victims]
        floor.close()
        beats, share = job.beats_a_second(), job.cpu_share(pace_s)
        job.close()
    table = {name: [row[name] for row in rows] for name in NAMES}
    return {
        "members": count,
        "deaths": len(rows),
        "change_bytes": job.change_bytes,
        "median_ms": {name: round(statistics.median(values), 2) for name, values in table.items()},
        "spread_ms": {name: [round(min(values), 2), round(max(values), 2)] for name, values in table.items()},
        "beats_a_second": round(beats),
        "cpu_share": round(share, 4),
        "kib_each": round(job.kib_each, 1),
        "founded_s": round(job.founded_s, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", default="10,100,1000,10000")
    parser.add_argument("--deaths", type=int, default=9)
    parser.add_argument("--pace", type=float, default=5.0, help="seconds for which every member beats once a second")
    parser.add_argument("--json", type=Path, help="add the figures to this file, a line of JSON each")
    args = parser.parse_args()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=HERE)
    print(f"{'members':>8}", *(f"{name:>14}" for name in (*NAMES, *OTHERS)))
    for count in map(limit, map(int, args.members.split(","))):
        found = measure(count, args.deaths, args.pace)
        medians = found["median_ms"]
        assert isinstance(medians, dict)
        figures = [medians[name] for name in NAMES] + [found[name] for name in OTHERS]
        print(f"{count:8}", *(f"{figure:>14}" for figure in figures), flush=True)
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps({**found, "machine": machine, "commit": commit.stdout.strip()}) + "\n")


if __name__ == "__main__":
    main()

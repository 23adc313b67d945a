"""Workers' output: every byte into the file, every line with its prefix onto the terminal."""

import os
from collections.abc import Callable

from hosting import Host, wait_for

MakeHost = Callable[..., Host]


def _run(host: MakeHost, script: str, *members: str) -> Host:
    agent = host(script)
    for member in members:
        agent.order("start", member)
    for _ in members:
        agent.event("gone")
    agent.close()
    return agent


def test_lines_get_the_replicas_name_and_streams_stay_apart(host: MakeHost) -> None:
    agent = _run(host, "import sys; print('out'); print('err', file=sys.stderr)", "r1.0")
    assert agent.stdout == b"[r1] out\n"
    assert agent.stderr == b"[r1] err\n"
    assert sorted(agent.kept("r1.0").split()) == [b"err", b"out"]


def test_a_line_that_never_ends_survives(host: MakeHost) -> None:
    agent = _run(host, "import os; os.write(1, b'no newline'); os.kill(os.getpid(), 9)", "r1.0")
    assert agent.kept("r1.0") == b"no newline"
    assert agent.stdout == b"[r1] no newline\n"


def test_bytes_that_are_no_utf8_survive(host: MakeHost) -> None:
    agent = _run(host, r"import os; os.write(1, b'\xff\xfe\x00\n')", "r1.0")
    assert agent.kept("r1.0") == b"\xff\xfe\x00\n"
    assert agent.stdout == b"[r1] \xff\xfe\x00\n"


def test_a_progress_bar_overwrites_itself(host: MakeHost) -> None:
    agent = _run(host, r"import os; os.write(1, b'10%\r20%\rdone\r\nnext\n')", "r1.0")
    assert agent.kept("r1.0") == b"10%\r20%\rdone\r\nnext\n"
    assert agent.stdout == b"[r1] 10%\r[r1] 20%\r[r1] done\r\n[r1] next\n"


def test_a_flood_is_whole_and_lets_another_death_through(host: MakeHost) -> None:
    script = """
import os, sys
if os.environ["REGROW_REPLICA"] == "r1":
    while not os.path.exists("enough"): os.write(1, b"x" * 99 + b"\\n")
else:
    os.kill(os.getpid(), 9)
"""
    agent = host(script)
    agent.order("start", "r1.0")
    wait_for(lambda: len(agent.stdout) > 1_000_000, "the flood to reach the terminal")
    agent.order("start", "r0.0")
    assert agent.gone("r0.0") == "killed by SIGKILL"
    (agent.folder / "enough").touch()
    assert agent.gone("r1.0") == "exited with code 0"
    agent.close()
    kept = agent.kept("r1.0")
    assert set(kept.split(b"\n")) == {b"x" * 99, b""}
    assert agent.stdout.count(b"\n") == kept.count(b"\n")
    assert set(agent.stdout.split(b"\n")) == {b"[r1] " + b"x" * 99, b""}


def test_a_terminal_that_takes_nothing_does_not_hold_up_a_death(host: MakeHost) -> None:
    reader, writer = os.pipe()  # nobody reads: full after 64 KiB
    agent = host("import os; os.write(1, b'y' * 70_000 + b'\\n'); os.kill(os.getpid(), 9)", stdout=writer)
    os.close(writer)
    agent.order("start", "r1.0")
    assert agent.gone("r1.0") == "killed by SIGKILL"
    agent.order("start", "r1.1")
    assert agent.gone("r1.1") == "killed by SIGKILL"
    os.close(reader)
    agent.close()
    assert agent.kept("r1.1") == b"y" * 70_000 + b"\n"

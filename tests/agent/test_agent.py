"""The agent on real processes: what it starts, it sees end, and nothing outlives it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hosting import Host, is_alive, wait_for

MakeHost = Callable[..., Host]

WAITS = "import signal\nprint('here', flush=True)\nwhile True: signal.pause()\n"
WITH_GRANDCHILD = """
import os, signal, subprocess, sys
from pathlib import Path
pauses = [sys.executable, "-c", "import signal\\nwhile True: signal.pause()"]
child = subprocess.Popen(pauses, start_new_session=SESSION, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
Path("grandchild.new").write_text(str(child.pid))
os.rename("grandchild.new", "grandchild")
while True: signal.pause()
"""


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("pass", "exited with code 0"),
        ("import sys; sys.exit(3)", "exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("import os; os.kill(os.getpid(), 11)", "segfaulted (SIGSEGV)"),
        ("import os; os.abort()", "aborted (SIGABRT)"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
        ("raise ValueError('oops')", "exited with code 70"),
    ],
)
def test_an_end_is_reported_in_words(host: MakeHost, script: str, how: str) -> None:
    agent = host(script)
    agent.order("start", "r0.0")
    event = agent.event("gone")
    assert (event["how"], event["clean"]) == (how, how == "exited with code 0")
    agent.close()


def test_an_incarnation_is_started_once(host: MakeHost) -> None:
    agent = host("import os; open('lives', 'a').write(os.environ['REGROW_INCARNATION'])")
    for member in ("r0.0", "r0.0", "r0.1"):
        agent.order("start", member)
    assert sorted(str(agent.event("gone")["gone"]) for _ in range(2)) == ["r0.0", "r0.1"]
    agent.order("start", "r0.0")
    agent.order("start", "r0.2")
    assert agent.gone("r0.2") == "exited with code 0"
    agent.close()
    assert sorted((agent.folder / "lives").read_text()) == ["0", "1", "2"]


def test_a_worker_is_the_agents_child_in_a_group_of_its_own(host: MakeHost) -> None:
    agent = host("import os; print(os.getppid(), os.getpgrp() == os.getpid() == os.getsid(0), os.getcwd(), flush=True)")
    agent.order("start", "r0.0")
    agent.gone("r0.0")
    agent.close()
    assert agent.kept("r0.0").decode() == f"{agent.process.pid} True {agent.folder}\n"


def test_a_worker_holds_nothing_of_the_agent_or_the_warm_parent(host: MakeHost) -> None:
    agent = host(
        "import os\nfor n in os.listdir('/proc/self/fd'):\n    if int(n) > 2 and os.path.exists(f'/proc/self/fd/{n}'):\n"
        "        print(os.readlink(f'/proc/self/fd/{n}'))"
    )
    agent.order("start", "r0.0")
    agent.gone("r0.0")
    agent.close()
    assert agent.kept("r0.0") == b"/memfd:regrow-r0.0 (deleted)\n"  # its stamp's page


def test_a_death_is_told_by_the_kernel_not_found_by_looking(host: MakeHost) -> None:
    """Nothing in the agent that waits for a time to come has its turn here."""
    agent = host(WAITS)
    agent.order("start", "r0.0")
    worker = agent.started("r0.0")
    agent.order("freeze")
    agent.event("clock")
    os.kill(worker, signal.SIGKILL)
    assert agent.gone("r0.0") == "killed by SIGKILL"
    agent.order("thaw")
    agent.event("clock")
    agent.close()


def test_a_killed_worker_takes_its_group_along(host: MakeHost) -> None:
    agent = host(WITH_GRANDCHILD.replace("SESSION", "False"))
    agent.order("start", "r0.0")
    grandchild = _grandchild(agent)
    os.kill(agent.started("r0.0"), signal.SIGKILL)
    assert agent.gone("r0.0") == "killed by SIGKILL"
    wait_for(lambda: not is_alive(grandchild), "the grandchild to go with its worker")
    wait_for(lambda: not Path(f"/proc/{grandchild}").exists(), "the grandchild to be reaped")
    agent.close()


def test_kill_ends_a_stopped_worker(host: MakeHost) -> None:
    agent = host(WAITS)
    agent.order("start", "r0.0")
    os.kill(agent.started("r0.0"), signal.SIGSTOP)
    agent.order("kill", "r0.0")
    assert agent.gone("r0.0") == "was ended: it was asked for"
    agent.close()


def test_kill_before_the_start_is_a_report_too(host: MakeHost) -> None:
    agent = host(WAITS)
    agent.order("start", "r0.0", "3600")
    agent.order("kill", "r0.0")
    assert agent.gone("r0.0") == "was ended before it started: it was asked for"
    agent.close()


def test_kill_of_one_whose_start_was_never_heard_is_a_report_too(host: MakeHost) -> None:
    """A coordinator that has given it up waits for a proof that it is dead; and dead it stays."""
    agent = host(WAITS)
    agent.order("kill", "r0.0")
    assert agent.gone("r0.0") == "was ended before it started: it was asked for"
    agent.order("start", "r0.0")
    agent.close()


def test_close_leaves_no_process_not_even_one_in_a_session_of_its_own(host: MakeHost) -> None:
    agent = host(WITH_GRANDCHILD.replace("SESSION", "True"))
    agent.order("start", "r0.0")
    grandchild, worker = _grandchild(agent), agent.started("r0.0")
    agent.order("close")
    assert agent.gone("r0.0") == "was ended: the job is over"
    agent.event("closed")
    agent.process.wait(30)
    assert not any(map(is_alive, (grandchild, worker, agent.warm)))


def test_kill_9_of_the_agent_leaves_no_process(host: MakeHost) -> None:
    agent = host(WITH_GRANDCHILD.replace("SESSION", "False"))
    agent.order("start", "r0.0")
    everyone = [_grandchild(agent), agent.started("r0.0"), agent.warm]
    agent.process.kill()
    wait_for(lambda: not any(map(is_alive, everyone)), "worker, grandchild and warm parent to go")


def test_kill_9_of_the_warm_parent_hurts_no_worker(host: MakeHost) -> None:
    agent = host(WAITS)
    agent.order("start", "r0.0")
    worker = agent.started("r0.0")
    _kill_warm(agent)
    agent.order("start", "r1.0")
    second = agent.started("r1.0")
    assert is_alive(worker)
    agent.order("kill", "r0.0")
    assert agent.gone("r0.0") == "was ended: it was asked for"
    assert is_alive(second)
    agent.order("close")
    agent.gone("r1.0")


def test_after_the_warm_parents_death_kill_9_of_the_agent_still_leaves_no_process(host: MakeHost) -> None:
    agent = host(WITH_GRANDCHILD.replace("SESSION", "False"))
    agent.order("start", "r0.0")
    everyone = [_grandchild(agent), agent.started("r0.0"), agent.warm]
    _kill_warm(agent)
    (agent.folder / "grandchild").unlink()
    agent.order("start", "r1.0")  # once it runs, the new warm parent has heard of r0.0
    everyone += [_grandchild(agent), agent.started("r1.0")]
    agent.process.kill()
    wait_for(lambda: not any(map(is_alive, everyone)), "both workers and their children to go")


def test_a_warm_parent_that_cannot_start_says_so(host: MakeHost) -> None:
    with pytest.raises(AssertionError, match="InfraError: the warm parent exited with code 1 before it was ready"):
        host("pass", entry="no_such_module:run")


def _grandchild(agent: Host) -> int:
    path = agent.folder / "grandchild"
    wait_for(path.exists, "the grandchild")
    return int(path.read_text())


def _kill_warm(agent: Host) -> None:
    """An order that it took with it is reported as lost; one that comes after its death must find another parent."""
    os.kill(agent.warm, signal.SIGKILL)
    wait_for(lambda: not is_alive(agent.warm), "the warm parent to die")

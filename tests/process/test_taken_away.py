"""Word that the machine will be taken away: the last state is durable before it is, or what is lost is told."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from runs import EVEN, Run, kill_together, prove, wait_for
from test_saves import PACED, STEPS, Start, durable, kept, prove_saved, stop_at

from regrow.core.records import Committed, JobEnded, NoticeSeen, SaveFailed, StateKept, WorkerRaised

pytestmark = pytest.mark.process

INTERRUPTED, UNSAFE = 75, 143


class Service:
    """A metadata service on this machine."""

    def __init__(self) -> None:
        self.status, self.body = 404, b"not found"
        self.asked = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked += 1
                self.send_response(service.status)
                self.end_headers()
                self.wfile.write(service.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/spot/instance-action"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def under_way(run: Run, steps: int = 3) -> None:
    wait_for(lambda: len(run.facts(Committed)) >= steps, f"{steps} steps")


def prove_interrupted(run: Run, place: Path, start: Start, reference: str) -> None:
    """One agreed step, durable; another run goes on from it, and nothing is computed twice."""
    assert run.wait() == INTERRUPTED, run.story()
    steps = max(fact.step for _, fact in run.facts(Committed)) + 1
    assert durable(place)[0] == kept(run)[-1] == steps < STEPS, run.story()
    assert f"safe is the state of step {steps}, at {place}: nothing is lost" in run.output, run.story()
    assert run.check().returncode == 0, run.story()
    again = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    assert again.wait() == 0, again.story()
    prove(again, reference, deaths=Counter(), first=steps)
    prove_saved(again, place, reference)


@pytest.mark.parametrize("source", ["file", "signal", "url", "SIGTERM"])
def test_a_notice_in_the_middle_of_a_step(
    tmp_path: Path, start: Start, place: Path, reference: str, service: Service, source: str
) -> None:
    flags = {
        "file": ("--notice-file", str(tmp_path / "notice")),
        "signal": ("--notice-signal", "USR2"),
        "url": ("--notice-url", service.url),
        "SIGTERM": (),
    }[source]
    run = start(
        "--replicas", "2", "--checkpoint", str(place), "--checkpoint-every", "1000", *flags, script_args=("--pace", "0.2")
    )
    under_way(run)
    match source:
        case "file":
            (tmp_path / "notice").touch()
        case "signal":
            # As a scheduler does that sends it to every process of the job.
            for pid in run.processes():
                os.kill(pid, signal.SIGUSR2)
        case "url":
            wait_for(lambda: service.asked, "a question")
            service.status, service.body = 200, b'{"action": "terminate", "time": "2026-11-18T08:22:00Z"}'
        case "SIGTERM":
            run.process.terminate()
    prove_interrupted(run, place, start, reference)
    seen = [fact for _, fact in run.facts(NoticeSeen)]
    assert len(seen) == (source != "SIGTERM") and all(fact.within_s == 30 for fact in seen), run.story()


def test_a_notice_in_the_middle_of_a_save(tmp_path: Path, start: Start, place: Path, reference: str) -> None:
    """The writer stands still with shards of an older state in the place until the job is about to end, and dies."""
    notice = tmp_path / "notice"
    flags = ("--checkpoint", str(place), "--checkpoint-every", "4", "--notice-file", str(notice))
    run = start("--replicas", "2", *EVEN, *flags, "--fault", "writer:save-manifest:step=4:SIGSTOP", script_args=PACED)
    wait_for(lambda: stopped(run), "the writer to stand still in its save")
    notice.touch()
    wait_for(lambda: any(fact.step > 4 for _, fact in run.facts(StateKept)), "the last state in memory")
    assert durable(place) == []
    for pid in stopped(run):
        os.kill(pid, signal.SIGKILL)
    prove_interrupted(run, place, start, reference)


def stopped(run: Run) -> list[int]:
    """Writers that the kernel calls stopped."""
    writers = [pid for pid, command in run.processes().items() if "regrow.agent.writer" in command]
    return [pid for pid in writers if (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T"]


def test_a_deadline_that_is_too_short_says_what_was_saved_and_what_is_lost(
    tmp_path: Path, start: Start, place: Path
) -> None:
    stop_at(start, place, 9)
    notice = tmp_path / "notice"
    flags = (
        "--checkpoint",
        str(place),
        "--checkpoint-every",
        "1000",
        "--resume",
        "latest",
        "--notice-file",
        str(notice),
        "--notice-within",
        "3",
    )
    run = start("--replicas", "2", *flags, "--fault", "writer:save-manifest:hang", script_args=PACED)
    under_way(run)
    notice.touch()
    assert run.wait() == INTERRUPTED, run.story()
    last = kept(run)[-1]
    assert durable(place) == [10], "what is not complete is not there"
    assert f"{place}: the time was up: step {last}" in run.output, run.story()
    assert f"safe is the state of step 10, at {place}: {last - 10} steps committed since are lost" in run.output
    run.wait_nothing_left({})


def test_with_nothing_durable_in_time_there_is_nothing_to_go_on_from(tmp_path: Path, start: Start, place: Path) -> None:
    notice = tmp_path / "notice"
    flags = ("--checkpoint", str(place), "--checkpoint-every", "1000", "--notice-file", str(notice), "--notice-within", "2")
    run = start("--replicas", "2", *flags, "--fault", "writer:save-manifest:hang", script_args=PACED)
    under_way(run)
    notice.touch()
    assert run.wait() == UNSAFE, run.story()
    assert durable(place) == [] and "no state of this job is at any place" in run.output, run.story()


@pytest.mark.parametrize(("every", "is_used"), [(5, True), (1000, False)])
def test_without_a_boundary_in_time_the_newest_state_in_memory_is_what_is_left(
    tmp_path: Path, start: Start, place: Path, every: int, is_used: bool
) -> None:
    """A replica hangs in a collective, and nobody judges it."""
    notice = tmp_path / "notice"
    hang = ("--fault", "r1:reduce:step=12:hang", "--hang-factor", "0")
    flags = ("--checkpoint", str(place), "--checkpoint-every", str(every), "--memory-every", "1")
    run = start(
        "--replicas", "2", *EVEN, *flags, *hang, "--notice-file", str(notice), "--notice-within", "4", script_args=PACED
    )
    wait_for(
        lambda: kept(run) and kept(run)[-1] >= 12 and bool(durable(place)) == is_used, "the state before the step that hangs"
    )
    notice.touch()
    assert run.wait() == INTERRUPTED, run.story()
    (end,) = (fact for _, fact in run.facts(JobEnded))
    assert "no boundary passed within the 4 s of --notice-within" in end.why
    assert durable(place)[0] == 12, "it was sent there at once, as there was time for it"
    assert f"safe is the state of step 12, at {place}" in run.output, run.story()


def test_all_replicas_lost_before_they_could_stop_leave_the_newest_state(
    tmp_path: Path, start: Start, place: Path, reference: str
) -> None:
    """They are in a step that never ends, so that no boundary comes in between."""
    hang = ("--fault", "r1:reduce:step=12:hang", "--hang-factor", "0")
    flags = ("--checkpoint", str(place), "--checkpoint-every", "5", "--memory-every", "1")
    run = start("--replicas", "2", *EVEN, *flags, *hang, script_args=PACED)
    wait_for(lambda: kept(run) and kept(run)[-1] >= 12 and durable(place), "the state before the step that hangs")
    run.process.terminate()
    wait_for(lambda: "stopping at the next boundary" in run.output, "the stop")
    kill_together(run.live_pids())
    assert run.wait() == INTERRUPTED, run.story()
    assert "every replica was lost before the job could stop" in run.output, run.story()
    assert "the training state is lost" not in run.output, run.story()
    assert f"safe is the state of step 12, at {place}: nothing is lost" in run.output, run.story()
    again = start("--replicas", "2", "--checkpoint", str(place), "--resume", "latest")
    assert again.wait() == 0, again.story()
    prove(again, reference, deaths=Counter(), first=12)


def test_the_place_that_outlives_the_machine_comes_first(tmp_path: Path, start: Start, place: Path, reference: str) -> None:
    """Of two places the first one named goes with the machine. Both get the last state, and the other one gets it first."""
    local, notice = tmp_path / "local", tmp_path / "notice"
    flags = (
        "--checkpoint",
        str(local),
        "--checkpoint",
        str(place),
        "--host-local",
        str(local),
        "--checkpoint-every",
        "1000",
    )
    run = start("--replicas", "2", *flags, "--notice-file", str(notice), script_args=PACED)
    under_way(run)
    notice.touch()
    assert run.wait() == INTERRUPTED, run.story()
    assert durable(place) == durable(local) == [kept(run)[-1]], run.story()
    saved = [path.stat().st_mtime_ns for path in (place / "pointers", local / "pointers")]
    assert saved[0] < saved[1], "one after the other"


def test_an_exception_that_ends_the_job_saves_what_others_hold(start: Start, place: Path, digests: list[str]) -> None:
    """Of three replicas two raise the same; the third holds the state before the step."""
    faults = [part for name in ("r0", "r1") for part in ("--fault", f"{name}:backward:step=7:raise")]
    flags = ("--replicas", "3", "--checkpoint", str(place), "--checkpoint-every", "100", "--poison-after", "9")
    run = start(*flags, *faults, script_args=("--hold", "6:3"))
    assert run.wait() == 1, run.story()
    assert len(run.facts(WorkerRaised)) == 2 and "FaultInjected" in run.output, run.story()
    assert durable(place) == [7] and kept(run) == [7], run.story()
    assert f"safe is the state of step 7, at {place}: nothing is lost" in run.output, run.story()
    assert run.check().returncode == 0, run.story()


def test_an_exception_on_all_replicas_leaves_the_newest_state_and_names_it(start: Start, place: Path) -> None:
    """Nobody is left who holds more; what only lay in memory is made durable before it goes."""
    faults = [part for name in ("r0", "r1") for part in ("--fault", f"{name}:entered:step=7:raise")]
    flags = ("--replicas", "2", *EVEN, "--checkpoint", str(place), "--checkpoint-every", "100", "--memory-every", "3")
    run = start(*flags, *faults)
    assert run.wait() == 1, run.story()
    assert durable(place) == [6] and "safe is the state of step 6" in run.output, run.story()
    assert not run.facts(SaveFailed), run.story()


def test_a_notice_file_that_is_there_already_is_refused(tmp_path: Path, start: Start) -> None:
    (tmp_path / "notice").touch()
    run = start("--replicas", "1", "--notice-file", str(tmp_path / "notice"))
    assert run.wait() == 2 and "is there already" in run.output, run.story()

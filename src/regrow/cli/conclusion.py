"""The end of a job, for people and for scripts: what the terminal shows, and the exit code."""

from collections.abc import Sequence
from pathlib import Path

from regrow.agent.terminal import STDERR, Terminal
from regrow.core.membership_effects import End
from regrow.core.messages import Raised
from regrow.core.safety import Safety

FINISHED, FAILED, USAGE, STATE_LOST, INFRA, BUG, STOPPED = 0, 1, 2, 3, 4, 70, 130
INTERRUPTED, UNSAFE = 75, 143
"""By SIGTERM or a notice: with a state that is safe, and without."""
CODES = {"finished": FINISHED, "failed": FAILED, "state-lost": STATE_LOST, "bug": BUG, "stopped": STOPPED}
_FEW = 4


def conclude(terminal: Terminal, end: End, raised: list[Raised], run_dir: str, goes_on: bool = False) -> None:
    """The first failure first, then what became of the job. `goes_on`: as `is_to_go_on` says."""
    if end.outcome in ("failed", "state-lost"):
        first = end.first or (raised[0] if raised else None)
        if first is not None:
            _show(terminal, first, [other for other in raised if other != first])
    words = {
        "finished": f"the job finished: {end.why}",
        "stopped": f"the job was stopped: {end.why}",
        "failed": f"the job failed: {end.why}",
        "bug": f"the job was ended: {end.why}",
        "state-lost": (
            f"the training state is lost: {end.why}.\n"
            "Regrow never restarts from initial weights by itself. Look for the cause in the output above and in "
            f"{run_dir}/output, then start a new run; more --replicas make this less likely, and with "
            "--checkpoint or --memory-every a job outlives all of them."
        ),
    }
    if goes_on:
        words["state-lost"] = f"every replica was lost before the job could stop: {end.why}"
    terminal.say(words[end.outcome])
    if end.outcome in ("failed", "state-lost"):
        terminal.say(f"what led there: regrow why {run_dir}")


def conclude_saves(terminal: Terminal, end: End, failures: Sequence[str], run_dir: str) -> int | None:
    """Of a job that saves, once nothing more becomes durable. The exit code, where that of the job would hide that its last
    state is not safe."""
    if not failures:
        return None
    terminal.say("the last state of the job is not durable everywhere:")
    if len(failures) > _FEW:
        terminal.say(f"  {len(failures) - _FEW} before these: regrow why {run_dir} --all tells each")
    for failure in failures[-_FEW:]:
        terminal.say(f"  {failure}")
    terminal.say(
        f"what is safe there: regrow checkpoint list {run_dir}. Mend the cause, then start again with --resume latest to go "
        "on from the newest state"
    )
    return INFRA if end.outcome in ("finished", "stopped") else None


def conclude_safety(terminal: Terminal, end: End, safety: Safety) -> None:
    """Of a job that saves and did not come to its end."""
    if end.outcome != "finished":
        terminal.say(safety.words)


def is_to_go_on(end: End, safety: Safety | None, is_interrupted: bool) -> bool:
    """Is there something to go on from, for another run? Whoever takes a machine away asks for nothing else, also where all
    replicas were lost before they could stop."""
    is_cut_short = end.outcome in ("stopped", "state-lost") and is_interrupted
    return is_cut_short and safety is not None and safety.best is not None


def exit_code(end: End, safety: Safety | None, unsaved: int | None, is_interrupted: bool) -> int:
    """`unsaved`: that of `conclude_saves`."""
    if is_to_go_on(end, safety, is_interrupted):
        return INTERRUPTED
    if end.outcome == "stopped" and is_interrupted:
        return UNSAFE
    return CODES[end.outcome] if unsaved is None else unsaved


def _show(terminal: Terminal, first: Raised, others: list[Raised]) -> None:
    terminal.say(f"the first failure, {_place(first)}:")
    prefix = f"[{first.member.replica}] "
    text = "".join(f"{prefix}{line}\n" for line in first.traceback.splitlines())
    terminal.write(STDERR, text.encode(errors="replace"))
    if others:
        terminal.say("also: " + "; ".join(f"{raised.kind}, {_place(raised)}" for raised in others))


def _place(raised: Raised) -> str:
    where = "" if raised.step is None else f" in step {raised.step}"
    lane = "" if raised.lane is None else f", lane {raised.lane}"
    return f"{raised.member}{where}{lane} at {raised.place}"


def short(path: Path) -> str:
    """As the user would type it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)

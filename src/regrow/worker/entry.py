"""Where a worker's process begins: runs the user's script, and says how it ended.

Called in a process freshly forked from the warm parent. Exit codes: the script's own; 1 when it raised; 64 when it never
joined; 65 when it ended before the job did; 66 when the others went on without it; 67 when it has left as planned.
"""

import errno
import os
import re
import runpy
import sys
import sysconfig
import traceback
from types import TracebackType

from regrow.core.errors import ConfigError, HaltError, InfraError, RegrowError
from regrow.core.messages import Raised
from regrow.shell.door import WorkerDoor
from regrow.shell.faultpoint import arm, faultpoint
from regrow.shell.memory import measure_self
from regrow.shell.stamp import Stamp, dump_on_signal
from regrow.worker import job, tuning
from regrow.worker.job import FLUSH_S, Place

NEVER_JOINED_CODE = 64
ENDED_EARLY_CODE = 65

place: Place | None = None
"""This worker's place in its job; None in a script that was started alone."""


def run_script(script: str, argv: list[str]) -> int:
    """Run the script as __main__; returns the process's exit code."""
    global place
    door = WorkerDoor.from_environ(os.environ)
    if door is None:
        raise InfraError("a worker was started without its door: this is done by `regrow run` alone")
    arm(door.faults, door.member, door.run_dir)
    stamp = Stamp(door.stamp_fd)
    if door.stamp_fd is not None:
        dump_on_signal(door.stamp_fd)
    stamp.watch_collections()
    place = Place(door, stamp)
    sys.argv = [script, *argv]
    try:
        faultpoint("start")
        runpy.run_path(script, run_name="__main__")
        code = _end_of(script)
    except SystemExit as leaving:
        code = _code(leaving) or _end_of(script)
    except BaseException as error:  # the edge of the process: whatever the script raised is recorded and reported
        if isinstance(error, HaltError) and job.current is not None and job.current.ended:
            # Left in good order, and everyone with it: it is the job that failed, and `regrow run` says so.
            print(f"regrow: {error}", file=sys.stderr)
            code = 0
        else:
            _report(place, error, script)
            code = 1
    place.session.flush(FLUSH_S)
    return code


def _end_of(script: str) -> int:
    """The script ran to its end, or left with code 0: was that the job's end too?"""
    if job.current is None:
        print(f"regrow: {script} ended without calling regrow.join(): it took no part in the job", file=sys.stderr)
        return NEVER_JOINED_CODE
    if not job.current.ended:
        step, _ = job.current.position
        where = "before its first step" if step is None else f"at step {step}"
        error = ConfigError(
            f"{script} ended {where} while the job goes on: run the loop over job.steps() to its end, and stop early with "
            "job.stop()"
        )
        assert place is not None
        _report(place, error, script)
        return ENDED_EARLY_CODE
    return 0


def _code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code
    print(leaving.code, file=sys.stderr)
    return 1


def _report(place: Place, error: BaseException, script: str) -> None:
    advice = tuning.advice(error)
    if advice is not None:
        error.add_note(advice)
    trimmed = _from_script(error.__traceback__, script)
    text = "".join(traceback.format_exception(type(error), error, trimmed))
    text = text.encode("utf-8", "backslashreplace").decode()  # a message may quote bytes that are no text
    print(text, file=sys.stderr, end="", flush=True)
    memory = measure_self(f"{type(error).__name__} in the script") if _is_lack_of_memory(error) else None
    if memory is not None:
        print(f"regrow: out of memory ({memory})", file=sys.stderr, flush=True)
    step, lane = job.current.position if job.current else (None, None)
    place.session.send(
        Raised(
            member=place.door.member,
            kind=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
            place=_innermost(trimmed) or script,
            traceback=text[-64 * 1024 :],
            step=step,
            lane=lane,
            scope=error.scope if isinstance(error, RegrowError) else "step" if advice is None else "job",
            memory=memory,
        )
    )


def _is_lack_of_memory(error: BaseException | None) -> bool:
    """Of the host's memory. torch has no exception of its own for that: its allocator raises a RuntimeError."""
    if error is None:
        return False
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    if isinstance(error, RuntimeError) and re.search(r"DefaultCPUAllocator: (can't allocate|not enough) memory", str(error)):
        return True
    return _is_lack_of_memory(error.__cause__)


def _from_script(tb: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the script's own first frame on: how we got there is not the user's concern."""
    walk = tb
    while walk is not None and walk.tb_frame.f_code.co_filename != script:
        walk = walk.tb_next
    return walk or tb


def _innermost(tb: TracebackType | None) -> str:
    """The last frame of the user's own code, where he would look. Empty for an error that nobody raised."""
    frames = traceback.extract_tb(tb)
    theirs = [frame for frame in frames if not _is_library(frame.filename)] or list(frames)
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""


def _is_library(filename: str) -> bool:
    """Python's own, an installed package's, or ours. Two errors of a script often end in the same line of torch."""
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = sysconfig.get_paths()
    folders = (ours, *(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")))
    return filename.startswith("<") or os.path.abspath(filename).startswith(tuple(folder + os.sep for folder in folders))

"""Evidence of a hang, kept before the kill: evidence/<member>.txt in the run directory.

The last stamp and the verdict with its numbers; what the kernel says of the process and each of its threads; and the Python
stacks of all threads. The worker dumps these itself on a signal, also while C code holds the GIL. One that cannot run is
read from outside by py-spy, where that is installed.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from regrow.agent import kernel
from regrow.agent.reaper import Reaper
from regrow.core.hangs import Hang
from regrow.shell.stamp import DUMP_SIGNAL, Page

_DUMP_S = 0.5
_SETTLED_S = 0.03
_SPY_S = 3.0


async def collect(path: Path, pid: int, hang: Hang, page: Page, standstill: str | None, reaper: Reaper) -> None:
    """Bounded in time, and never raises for want of a disk or of permission: the kill must not wait for it for long."""
    told = kernel.told(pid)
    if standstill is None:
        stacks = await _dumped(pid, page)
        source = "as the process dumped them"
        if not stacks:
            stacks, source = await _spied(pid, reaper), "as seen from outside: the process did not answer"
    else:
        stacks = await _spied(pid, reaper)
        source = f"as seen from outside: the process is {standstill}"
    parts = (
        f"{hang.member} (pid {pid}) {hang}\nwritten {time.strftime('%Y-%m-%d %H:%M:%S')}",
        f"Python stacks, {source}\n\n{stacks or _no_stacks()}",
        f"The kernel's view\n\n{told}",
    )
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write("\n\n".join(parts) + "\n\n")


async def _dumped(pid: int, page: Page) -> str:
    """Stacks have no end mark: they are complete once nothing more comes."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, DUMP_SIGNAL)
    end_s = time.monotonic() + _DUMP_S
    seen, changed_s = b"", time.monotonic()
    while (now_s := time.monotonic()) < end_s:
        stacks = page.stacks()
        if stacks != seen:
            seen, changed_s = stacks, now_s
        elif seen and now_s - changed_s > _SETTLED_S:
            break
        await asyncio.sleep(0.005)
    return seen.decode(errors="replace")


async def _spied(pid: int, reaper: Reaper) -> str:
    """Without stopping the process: ptrace would wait for one that cannot be woken."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if spy is None:
        return ""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    try:
        process = subprocess.Popen(
            [spy, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return f"(py-spy: {error})"
    assert process.stdout is not None
    reaper.watch(process.pid, lambda status: None if ended.done() else ended.set_result(status))
    with process.stdout as output:
        try:
            async with asyncio.timeout(_SPY_S):
                await ended
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            return f"(py-spy took more than {_SPY_S:g} s)"
        finally:
            process.returncode = 0  # reaped by the reaper: nobody may wait for this pid again
        os.set_blocking(output.fileno(), False)
        return (output.read() or b"").decode(errors="replace")


def _no_stacks() -> str:
    return "(none: the process cannot run; with py-spy installed they are read from outside)"

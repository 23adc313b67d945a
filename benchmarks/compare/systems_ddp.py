"""Plain DistributedDataParallel under torchrun: checkpoints, and the restart of all processes when one is lost."""

import sys
from dataclasses import dataclass
from pathlib import Path

from compare.ports import free_port
from compare.systems import Command, Work

JOB = Path(__file__).parent / "jobs" / "ddp_job.py"
TORCHRUN = Path(sys.executable).with_name("torchrun")
RESTARTS = 1000
COLLECTIVE_S = {"tiny": 10, "large": 3, "heavy": 30}
"""Above the longest step with its checkpoint, as for the heartbeats of NVRx; with tiny steps nobody hangs."""


@dataclass(frozen=True)
class Ddp:
    settings: str
    explained: str
    flags: tuple[str, ...] = ()
    has_timeout: bool = False
    environ: tuple[tuple[str, str], ...] = ()
    name: str = "DDP, torchrun"

    def unavailable(self) -> str:
        return ""

    def commands(self, work: Work, folder: Path) -> list[Command]:
        start = [f"--nproc-per-node={work.replicas}", f"--max-restarts={RESTARTS}", "--rdzv-backend=c10d"]
        start += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job", *self.flags]
        script = [str(JOB), *work.arguments(folder)]
        script += [f"--timeout-s={COLLECTIVE_S[work.size]}"] if self.has_timeout else []
        return [Command(name="launcher", argv=[str(TORCHRUN), *start, *script], environ=dict(self.environ))]


DEFAULT = Ddp("default", "--max-restarts is all that was set, because with its default of 0 the first death ends the job")
BEST = Ddp(
    "best",
    "the collectives' timeout 3 s, for the heavy model 30 s (init_process_group), --monitor-interval 0.1, a store of its "
    "own for each restart (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1); before a restart it waits 30 s for a process that SIGTERM "
    "does not end, which no flag changes",
    flags=("--monitor-interval=0.1",),
    has_timeout=True,
    environ=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),),
)
SYSTEMS = [BEST, DEFAULT]

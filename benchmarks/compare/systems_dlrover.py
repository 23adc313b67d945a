"""dlrover: a master, and dlrover-run, which restarts all processes when one dies; they begin at a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from compare.environments import DLROVER
from compare.ports import free_port
from compare.systems import Command, System, Work
from compare.systems_ddp import COLLECTIVE_S

JOB = Path(__file__).parent / "jobs" / "dlrover_job.py"
RESTARTS = 1000


@dataclass(frozen=True, kw_only=True)
class Dlrover:
    settings: str
    explained: str
    name: str = "dlrover-run"

    def unavailable(self) -> str:
        return DLROVER.unavailable()

    def commands(self, work: Work, folder: Path) -> list[Command]:
        is_best = self.settings == "best"
        port = free_port()
        master = ["--port", str(port), "--node_num", "1", "--job_name", "compare", "--platform", "local"]
        launcher = [str(DLROVER.bin / "dlrover-run"), f"--nproc-per-node={work.replicas}", f"--max-restarts={RESTARTS}"]
        launcher += ["--save_at_breakpoint"] if is_best else []
        job = [str(JOB), *work.arguments(folder)]
        job += ["--flash", f"--timeout-s={COLLECTIVE_S[work.size]}"] if is_best else []
        return [
            Command(name="coordinator", argv=[DLROVER.python, "-u", "-m", "dlrover.python.master.main", *master]),
            Command(
                name="launcher",
                argv=[*launcher, "--nnodes=1", *job],
                environ={"DLROVER_MASTER_ADDR": f"127.0.0.1:{port}", "ELASTIC_JOB_NAME": f"compare{port}"},
            ),
        ]


WITH_MASTER = (
    "the local master as a process of its own, because with --standalone dlrover-run cannot start it under this torch "
    "(SubprocessHandler: numa_options is missing)"
)
SYSTEMS: tuple[System, ...] = (
    Dlrover(settings="default", explained=f"dlrover-run with --max-restarts, checkpoints by torch.save; {WITH_MASTER}"),
    Dlrover(
        settings="best",
        explained=(
            "flash checkpoint: to shared memory five times as often as to disk, --save_at_breakpoint (its page on flash "
            f"checkpoint), no network check, the collectives' timeout 3 s, for the heavy model 30 s; {WITH_MASTER}"
        ),
    ),
)

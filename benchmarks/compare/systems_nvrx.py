"""nvidia-resiliency-ext: ft_launcher restarts all processes when one dies or is silent, and they begin at a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from compare.environments import NVRX
from compare.ports import free_port
from compare.systems import Command, System, Work

JOB = Path(__file__).parent / "jobs" / "nvrx_job.py"
PACKAGE = "nvidia_resiliency_ext.fault_tolerance"
RESTARTS = 1000
SILENCE_S = {"tiny": 3.0, "large": 3.0, "heavy": 30.0}
"""Above the longest step with its checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Nvrx:
    settings: str
    explained: str
    name: str = "NVRx ft_launcher"

    def unavailable(self) -> str:
        return NVRX.unavailable()

    def commands(self, work: Work, folder: Path) -> list[Command]:
        port = free_port()
        rendezvous = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job"]
        launcher = [NVRX.python, "-m", f"{PACKAGE}.launcher", *rendezvous]
        launcher += [f"--nproc-per-node={work.replicas}", f"--max-restarts={RESTARTS}"]
        job = [str(JOB), *work.arguments(folder)]
        if self.settings == "default":
            return [Command(name="launcher", argv=[*launcher, "--ft-workload-check-interval=5", *job])]
        launcher += [
            "--rdzv-conf=is_host=false",
            "--monitor-interval=0.1",
            "--workers-stop-timeout=1",
            "--ft-workload-check-interval=0.2",
            "--ft-initial-rank-heartbeat-timeout=60",
            f"--ft-rank-heartbeat-timeout={SILENCE_S[work.size]}",
        ]
        control = [NVRX.python, "-m", f"{PACKAGE}.control_plane", *rendezvous, "--ft-enable-log-server=false"]
        return [
            Command(name="coordinator", argv=control),
            Command(name="launcher", argv=[*launcher, *job]),
        ]


SYSTEMS: tuple[System, ...] = (
    Nvrx(
        settings="default",
        explained="ft_launcher with --max-restarts alone, heartbeats as in its train_ddp_heartbeats, no timeout given",
    ),
    Nvrx(
        settings="best",
        explained=(
            "the rendezvous in an nvrx-control of its own, --ft-rank-heartbeat-timeout 3 (heavy model: 30), "
            "--ft-workload-check-interval 0.2, --monitor-interval 0.1, --workers-stop-timeout 1 (usage guide, --help)"
        ),
    ),
)

"""torchft, nightly and release: a lighthouse, and for each replica group a torchrun that starts it again when it dies."""

from dataclasses import dataclass
from pathlib import Path

from compare.environments import TORCHFT_NIGHTLY, TORCHFT_RELEASE, Environment
from compare.ports import free_port
from compare.systems import Command, System, Work

JOB = Path(__file__).parent / "jobs" / "torchft_job.py"
RESTARTS = 1000
"""Of a replica; torchrun's own default is none. How often one may die is not what is compared."""
COLLECTIVE_S = {"tiny": 2, "large": 2, "heavy": 30}
"""A step waits for as long as it takes to hand the state to a replica that comes back: the limit must lie above it."""


@dataclass(frozen=True, kw_only=True)
class Torchft:
    environment: Environment
    name: str
    settings: str
    explained: str

    def unavailable(self) -> str:
        return self.environment.unavailable()

    def commands(self, work: Work, folder: Path) -> list[Command]:
        is_best = self.settings == "best"
        port = free_port()
        lighthouse = [str(self.environment.bin / "torchft_lighthouse"), "--bind", f"127.0.0.1:{port}", "--min_replicas", "1"]
        if is_best:
            lighthouse += ["--heartbeat_timeout_ms", "500", "--quorum_tick_ms", "10", "--join_timeout_ms", "10000"]
        environ = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}", "NUM_REPLICA_GROUPS": str(work.replicas)}
        options = []
        if is_best:
            options = ["--best", f"--collective-s={COLLECTIVE_S[work.size]}"]
        return [
            Command(name="coordinator", argv=lighthouse),
            *(
                Command(
                    name=f"replica{number}",
                    argv=[
                        *(self.environment.python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=1"),
                        *(f"--master_port={free_port()}", f"--max_restarts={RESTARTS}"),
                        *(str(JOB), *work.arguments(folder), *options),
                    ],
                    environ=environ | {"REPLICA_GROUP_ID": str(number)},
                )
                for number in range(work.replicas)
            ),
        ]


DEFAULT = (
    "lighthouse --min_replicas 1; Manager and ProcessGroupGloo with nothing but what they require; "
    "torchrun for each replica as in its README"
)
BEST = (
    "lighthouse --heartbeat_timeout_ms 500 --quorum_tick_ms 10 --join_timeout_ms 10000 (its --help, README); collectives "
    "give up after 2 s (heavy model: 30 s, above the time of a transfer), quorum_retries=600, connect_timeout=2 s, "
    "init_sync=False, state handed over in 8 chunks (docstrings of Manager and HTTPTransport)"
)
SYSTEMS: tuple[System, ...] = tuple(
    Torchft(environment=environment, name=name, settings=settings, explained=explained)
    for environment, name in ((TORCHFT_NIGHTLY, "torchft nightly"), (TORCHFT_RELEASE, "torchft release"))
    for settings, explained in (("default", DEFAULT), ("best", BEST))
)

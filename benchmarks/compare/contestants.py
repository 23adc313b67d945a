"""Which systems and which experiments there are."""

from compare import systems_ddp, systems_dlrover, systems_nvrx, systems_regrow, systems_torchft
from compare.experiments import checkpoint, churn, coordinator, hang, join, kill, lone, steady
from compare.systems import System

EXPERIMENTS = [
    *steady.EXPERIMENTS,
    *kill.EXPERIMENTS,
    *hang.EXPERIMENTS,
    *coordinator.EXPERIMENTS,
    *lone.EXPERIMENTS,
    *join.EXPERIMENTS,
    *churn.EXPERIMENTS,
    *checkpoint.EXPERIMENTS,
]


def systems() -> list[System]:
    modules = (systems_regrow, systems_ddp, systems_torchft, systems_nvrx, systems_dlrover)
    return [system for module in modules for system in module.SYSTEMS]

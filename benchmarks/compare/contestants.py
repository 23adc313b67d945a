"""Which systems and which experiments there are."""

from compare import systems_ddp, systems_regrow
from compare.experiments import kill
from compare.systems import System

EXPERIMENTS = [*kill.EXPERIMENTS]


def systems() -> list[System]:
    return [*systems_regrow.SYSTEMS, *systems_ddp.SYSTEMS]

"""python -m regrow.sim --seeds 0:2000 --jobs 2, or --seed 7 --verbose. Exit code 1 when a seed fails."""

import argparse
import sys
import time

from regrow.sim.campaign import Tally, campaign
from regrow.sim.world import SeedFailed, simulate

_FAULTS = 6


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m regrow.sim", description="Run whole jobs on virtual time.")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one seed")
    which.add_argument("--seeds", type=_seeds, metavar="START:STOP", help="a range of seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--faults", type=int, default=_FAULTS, metavar="K", help=f"at most K faults a seed (default {_FAULTS})"
    )
    parser.add_argument("--verbose", action="store_true", help="tell everything as it happens")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _tell(options.seed, options.faults, options.verbose)
    started_s = time.monotonic()
    tally = campaign(options.seeds, faults=options.faults, jobs=options.jobs, progress=_Progress(len(options.seeds)))
    print(tally)
    print(f"{(time.monotonic() - started_s) * 1000 / max(1, tally.seeds):.1f} ms a seed on {options.jobs} processes")
    for failure in tally.failures[:1]:
        print(failure.story)
    for failure in tally.failures:
        print(
            f"seed {failure.seed} broke {failure.rule}: python -m regrow.sim --seed {failure.seed} --faults {options.faults}"
        )
    return 1 if tally.failures else 0


def _tell(seed: int, faults: int, verbose: bool) -> int:
    try:
        print(simulate(seed, faults=faults, verbose=verbose))
    except SeedFailed as failed:
        # Everything was told as it happened; what is left is what broke.
        print(f"seed {failed.seed} broke {failed.what}" if verbose else failed)
        return 1
    return 0


def _seeds(text: str) -> range:
    start, colon, stop = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not START:STOP")
    return range(int(start), int(stop))


class _Progress:
    def __init__(self, total: int) -> None:
        self._total = total
        self._said_s = time.monotonic()

    def __call__(self, tally: Tally) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s > 2.0:
            self._said_s = now_s
            print(f"{tally.seeds} of {self._total} seeds, {len(tally.failures)} failed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

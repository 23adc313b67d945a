"""A stranger to the job of join.py that works as a joiner does: it reads and writes long tensors, for a share of a core."""

import argparse
import time

import torch

SIZE = 10_500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, required=True)
    share = parser.parse_args().share
    torch.set_num_threads(1)
    gradient, average, square, weight = (torch.rand(SIZE) for _ in range(4))
    spent, begun = time.thread_time(), time.monotonic()
    print("at work", flush=True)
    while True:
        average.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        weight.addcdiv_(average, square.sqrt().add_(1e-8), value=-1e-4)
        used, now = time.thread_time() - spent, time.monotonic() - begun
        if used > share * now:
            time.sleep(used / share - now)


if __name__ == "__main__":
    main()

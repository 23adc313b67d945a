"""The script the process tests attack: small, with everything that could part the replicas (dropout, AdamW, a schedule).

Writes the samples it was handed to used-<member>.txt in the run directory, so that a test can count them.
"""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn as nn

import regrow


class Points(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 97

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.sin(torch.arange(16) * (index + 1.0))
        return x, x[:4] * x[4:8], index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--stop-at", type=int, help="r1 alone asks to stop in this step")
    parser.add_argument("--hold", help="STEP:N: from this step on, wait for rosters until one has N members")
    parser.add_argument(
        "--pace",
        type=float,
        default=0.0,
        help="seconds that a step takes besides, until there is a file `hurry`; `enough`: stop",
    )
    parser.add_argument("--dawdle", action="store_true", help="replay no step before a roster was made that waits for this")
    parser.add_argument("--slow", help="the replica whose microbatches take 0.1 s more, until there is a file `hurry`")
    parser.add_argument("--bad-copies", help="the replica whose copies of memory come out with a bit flipped")
    parser.add_argument("--trail", action="store_true", help="print the digest at every step")
    parser.add_argument("--no-log", action="store_true", help="do not write down which samples were used")
    parser.add_argument("--child", action="store_true", help="start a process of its own, as a data loader does")
    parser.add_argument("--stray", action="store_true", help="start processes in sessions of their own, as a daemon does")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--width", type=int, default=32, help="of the hidden layer: how large the state is")
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="data workers of each replica")
    parser.add_argument("--skip", type=json.loads, default=[], help="JSON: lanes to leave out, as [step, lane] pairs")
    parser.add_argument("--poison", help="INDEX:ACTION: what the sample does to its replica: kill, segfault, raise, spin")
    parser.add_argument("--save", action="store_true", help="catch PoisonError and print the digest of what is left")
    parser.add_argument("--scale", choices=["linear", "sqrt"], help="the learning rate follows the lanes present")
    args = parser.parse_args()

    job = regrow.join(lanes=6, microbatches_per_lane=args.microbatches, seed=args.seed, skip=args.skip)
    model = nn.Sequential(
        nn.Linear(16, args.width), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(args.width), nn.Linear(args.width, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    job.track(model=model, optimizer=optimizer, schedule=schedule)
    data = job.data(Points(), batch_size=args.batch, num_workers=args.workers)
    log = (lambda text: None) if args.no_log else open_log()
    if args.child:
        subprocess.Popen([sys.executable, "-c", "import signal\nwhile True: signal.pause()"])
    if args.stray:
        start_strays()
    if args.bad_copies and args.bad_copies == os.environ.get("REGROW_REPLICA"):
        spoil_copies()
    signal.signal(signal.SIGUSR1, lambda *_: suffer("spin"))

    if args.scale:
        power = {"linear": 1.0, "sqrt": 0.5}[args.scale]

        def scale(strength: regrow.Strength) -> None:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 * (strength.lanes_present / strength.lanes) ** power

        job.on_roster(scale)

    try:
        train(args, job, model, optimizer, schedule, data, log)
    except regrow.PoisonError:
        if not args.save:
            raise
        print(f"kept {job.digest()}", flush=True)
        return
    print(f"digest {job.digest()}", flush=True)


def train(args, job, model, optimizer, schedule, data, log) -> None:
    is_slow = args.slow is not None and args.slow == os.environ.get("REGROW_REPLICA")
    for step in job.steps(args.steps, data):
        if step.index == args.stop_at and os.environ.get("REGROW_REPLICA", "r1") == "r1":
            job.stop()
        if args.trail:
            print(f"at {step.index} {job.digest()}")
        if args.pace and is_there("enough"):
            job.stop()
        elif args.pace and not is_there("hurry"):
            time.sleep(args.pace)
        if args.dawdle and not step.live:
            wait_to_be_waited_for()
        for x, y, index in step:
            log(f"{step.index} {' '.join(str(int(i)) for i in index)}\n")
            if args.poison and int(args.poison.split(":")[0]) in index:
                suffer(args.poison.split(":")[1])
            if is_slow and not is_there("hurry"):
                time.sleep(0.1)
            step.backward((model(x) - y).square().mean())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if not args.scale:  # else the hook alone decides the rate: how often it is called must not matter
            schedule.step()
        if args.hold and step.live and step.index >= int(args.hold.split(":")[0]):
            wait_for_strength(int(args.hold.split(":")[1]), step.index)
        if step.reporter:
            print(f"step {step.index} loss {step.loss:.6f} lanes {step.lanes_present}", flush=True)


def is_there(name: str) -> bool:
    return Path(os.environ.get("REGROW_RUN_DIR", "."), name).exists()


def suffer(action: str) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "raise":
            raise ValueError("this sample cannot be learned")
        case "spin":
            while True:
                pass


def spoil_copies() -> None:
    """As memory does that has gone bad: the live state is right, what is copied from it is not."""
    sound = ctypes.memmove

    def memmove(to: int, source: int, size_bytes: int) -> None:
        sound(to, source, size_bytes)
        ctypes.c_ubyte.from_address(to).value ^= 1

    ctypes.memmove = memmove


def start_strays() -> None:
    """One that is another program, one that is a fork of this one: neither is in this process's group or session."""
    pause = "import signal\nwhile True: signal.pause()"
    subprocess.Popen([sys.executable, "-c", pause], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        while True:
            signal.pause()


def wait_for_strength(members: int, step: int) -> None:
    """Wait until everyone lost is back; but not while a joiner or a roster needs this process to go on."""
    deadline = time.monotonic() + 60
    while not may_go_on(members, step):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no roster of {members} members")
        time.sleep(0.005)


def wait_to_be_waited_for() -> None:
    deadline = time.monotonic() + 60
    while not any("cannot keep up" in fact["why"] for fact in facts("coordinator", "RosterMade")):
        if time.monotonic() > deadline:
            raise TimeoutError("nobody waits for this replica")
        time.sleep(0.005)


def may_go_on(members: int, step: int) -> bool:
    """A roster that was made and has not come yet (a coordinator may have died in between) is waited for."""
    me = f"{os.environ['REGROW_REPLICA']}.{os.environ['REGROW_INCARNATION']}"
    made, adopted = facts("coordinator", "RosterMade")[-1], facts(me, "RosterAdopted")[-1]
    if facts(me, "RosterReceived")[-1]["version"] != made["version"]:
        return False
    if made["version"] == adopted["version"] and adopted["step"] <= step:
        return len(made["seats"]) == members or listener_wants(me, made, step)
    if made["base"] is None:
        return True
    return any(fact["version"] == made["version"] for fact in facts(me, "GroupsFormed")) or listener_wants(me, made, step)


def listener_wants(me: str, made: dict, step: int) -> bool:
    """Does the newest try of a joiner need one more step to be passed, before it can go on?"""
    tries = {listener[0][0]: listener for fact in facts(me, "ListenerAttached") for listener in [fact["listener"]]}
    fed = {str(fact["listener"]): fact["step"] for fact in facts(me, "ListenerFed")}
    for (replica, incarnation), attempt in tries.values():
        joiner, since = f"{replica}.{incarnation}", fed.get(str([[replica, incarnation], attempt]))
        if adopted_any(joiner):
            continue
        if since is None:
            return True
        loaded = any(fact["listener"][1] == attempt for fact in facts(joiner, "SnapshotLoaded"))
        committed = [fact["step"] for fact in facts(joiner, "Committed")]
        if loaded and not facts(joiner, "Audited") and (since > step or step in committed):
            return True
    return False


def adopted_any(joiner: str) -> bool:
    return bool(facts(joiner, "RosterAdopted"))


def facts(who: str, kind: str) -> list[dict]:
    journal = Path(os.environ["REGROW_RUN_DIR"]) / "journal" / f"{who}.jsonl"
    if not journal.exists():
        return []
    lines = [line for line in journal.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [what for line in lines if (what := json.loads(line)["what"])["fact"] == kind]


def open_log():
    folder = os.environ.get("REGROW_RUN_DIR")
    if folder is None:
        return lambda text: None
    name = f"used-{os.environ['REGROW_REPLICA']}.{os.environ['REGROW_INCARNATION']}.txt"
    return (Path(folder) / name).open("a", buffering=1).write


if __name__ == "__main__":
    main()

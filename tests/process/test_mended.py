"""Jobs whose saved state is whole at no tier: each gives what it has, the nearest first, and the digest is that of an
undisturbed run."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import EVEN, Run, alone, kill_together, prove, wait_for

from regrow.core.checkpoint import Manifest
from regrow.core.draft import draft_of
from regrow.core.records import OriginFound, OriginMended, OriginPassedOver, SaveDurable, StateKept, VaultEnded
from regrow.state.archive import Archive
from regrow.state.stores import open_store

pytestmark = pytest.mark.process

MEMORY = "this host's memory"
WIDE = ("--width", "20000")
SHARDED = ("--checkpoint-every", "4", "--shard-mb", "1")
BOTH = Counter({"r0": 1, "r1": 1})
Start = Callable[..., Run]


@pytest.fixture(scope="module")
def wide() -> str:
    """The digest of the job run alone."""
    return alone(*WIDE)


@pytest.fixture
def near(tmp_path: Path) -> Path:
    return tmp_path / "near"


@pytest.fixture
def far(tmp_path: Path) -> Path:
    return tmp_path / "far"


def standing(start: Start, *places: object, faults: tuple[str, ...] = ()) -> Run:
    """In step 10, with the state of step 8 in memory and durable at these places."""
    urls = [part for place in places for part in ("--checkpoint", str(place))]
    flags = ("--replicas", "2", *EVEN, *urls, *SHARDED, "--hang-factor", "0", "--fault", "r0:backward:step=10:SIGSTOP")
    run = start(*flags, *faults, script_args=WIDE)
    run.wait_stopped("r0.0")
    wait_for(lambda: [fact.step for _, fact in run.facts(SaveDurable)].count(8) == len(places), "step 8 at each place")
    assert run.facts(StateKept)[-1][1].step == 8, run.story()
    return run


def newest(place: object) -> tuple[str, Manifest]:
    """Its folder too."""
    archive = Archive(open_store(str(place)))
    pointer = archive.pointers()[0][0]
    return pointer.folder, archive.manifest(pointer)


def bodies(manifest: Manifest) -> list[int]:
    """How many bytes of tensors each shard has, all of which are chunks of their own."""
    assert {len(shard.chunks) for shard in manifest.shards} == {1} and len(manifest.shards) > 4
    return [stop - start for start, stop in draft_of(manifest).extents]


def harm_memory(run: Run, manifest: Manifest, *shards: int) -> None:
    """A bit of each, in whatever the agent holds."""
    folder = Path(f"/proc/{run.process.pid}/fd")
    for arena in [fd for fd in folder.iterdir() if "regrow-arena" in os.readlink(fd)]:
        with arena.open("r+b", buffering=0) as file:
            for shard in shards:
                at = draft_of(manifest).extents[shard][0] + 100
                if at < os.fstat(file.fileno()).st_size:
                    (byte,) = os.pread(file.fileno(), 1, at)
                    os.pwrite(file.fileno(), bytes([byte ^ 1]), at)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)


def served(run: Run) -> dict[str, int]:
    """By each tier, of the state that was looked for first; from then on it is whole in memory."""
    found = run.facts(OriginFound)[0][1]
    assert found.step == 8 and sum(one.size_bytes for one in found.served) == found.size_bytes, run.story()
    assert all(0 < one.seconds <= found.seconds for one in found.served), run.story()
    return {one.where: one.size_bytes for one in found.served}


def mended(run: Run) -> list[tuple[str, int]]:
    assert not run.facts(OriginPassedOver), run.story()
    return [(fact.where, fact.lacking_bytes) for _, fact in run.facts(OriginMended)]


def test_what_is_harmed_in_memory_comes_from_s3_and_nothing_else_does(start: Start, s3_url: str, wide: str) -> None:
    run = standing(start, s3_url)
    _, manifest = newest(s3_url)
    size = bodies(manifest)
    harm_memory(run, manifest, 1)
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove(run, wide, deaths=BOTH)
    assert served(run) == {MEMORY: sum(size) - size[1], s3_url: size[1]}
    assert mended(run) == [(MEMORY, size[1])]
    assert f"the state of step 8 comes from {MEMORY} and {s3_url}" in run.output, run.story()


@pytest.mark.parametrize("dies", [False, True], ids=["", "and the vault dies over it"])
def test_a_state_that_no_tier_has_whole_is_put_together(start: Start, near: Path, far: Path, wide: str, dies: bool) -> None:
    run = standing(start, near, far, faults=("--fault", "vault:restore-read:SIGKILL") if dies else ())
    folder, manifest = newest(near)
    size = bodies(manifest)
    harm_memory(run, manifest, 0, 1)
    (near / folder / manifest.shards[0].file).unlink()
    flip(far / newest(far)[0] / manifest.shards[1].file)
    kill_together(run.live_pids())
    assert run.wait() == 0, run.story()
    prove(run, wide, deaths=BOTH)
    assert len(run.facts(VaultEnded)) == 1 + dies, run.story()
    assert served(run) == {MEMORY: sum(size[2:]), str(near): size[1], str(far): size[0]}
    assert mended(run) == [(MEMORY, size[0] + size[1]), (str(near), size[0])]
    assert manifest.shards[0].file in run.output, run.story()


def test_a_resumed_job_reads_from_s3_what_its_disk_lacks(start: Start, near: Path, s3_url: str, wide: str) -> None:
    first = standing(start, near, s3_url)
    first.kill()
    wait_for(lambda: not first.processes(), "every process of the job to be gone")
    folder, manifest = newest(near)
    size = bodies(manifest)
    (near / folder / manifest.shards[2].file).unlink()
    flip(near / folder / manifest.shards[3].file)
    flags = ("--checkpoint", str(near), "--checkpoint", s3_url, *SHARDED, "--resume", "latest")
    run = start("--replicas", "3", *flags, script_args=WIDE)
    assert run.wait() == 0, run.story()
    prove(run, wide, deaths=Counter(), first=8)
    lacking = size[2] + size[3]
    assert served(run) == {str(near): sum(size) - lacking, s3_url: lacking}
    assert mended(run) == [(str(near), lacking)]
    for number in (2, 3):
        assert manifest.shards[number].file in run.output, run.story()

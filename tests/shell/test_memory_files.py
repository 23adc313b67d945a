"""The kernel's files about memory, of both versions of cgroups, as they look on real machines."""

from pathlib import Path

import pytest

from regrow.core.memory import Memory, size
from regrow.shell.memory import cgroup_of, host_kills, measure, measure_self

V1_ROWS = "9:pids:/x\n4:memory:/jobs/a\n0::/\n"
V1_MOUNT = "30 24 0:26 / {mount} rw,relatime - cgroup cgroup rw,memory\n"
V2_ROWS = "0::/jobs/a\n"
V2_MOUNT = "30 24 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def proc(folder: Path, rows: str, mounts: str) -> Path:
    for name in ("self", "7"):
        (folder / "proc" / name).mkdir(parents=True)
    (folder / "proc/self/mountinfo").write_text("24 1 0:1 / / rw - ext4 /dev/vda rw\n" + mounts)
    (folder / "proc/7/cgroup").write_text(rows)
    (folder / "proc/vmstat").write_text("pgfault 12\noom_kill 4\n")
    return folder / "proc"


def files(folder: Path, **contents: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (folder / name.replace("_", ".", 1)).write_text(text + "\n")


def test_version_1(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    files(top / "jobs/a", memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2")
    files(top / "jobs/a", memory_limit_in_bytes="9223372036854771712", memory_usage_in_bytes="5")
    files(top / "jobs", memory_limit_in_bytes="1000", memory_usage_in_bytes="900", memory_max_usage_in_bytes="999")
    cgroup = cgroup_of(7, proc(tmp_path, V1_ROWS, V1_MOUNT.format(mount=top)))
    assert cgroup is not None
    assert (cgroup.name, cgroup.kills, cgroup.limit_bytes, cgroup.used_bytes) == ("/jobs/a", 2, None, 5)
    memory = measure("a test", cgroup)
    told = (memory.cgroup, memory.cgroup_limit_bytes, memory.cgroup_used_bytes, memory.cgroup_peak_bytes)
    assert told == ("/jobs", 1000, 900, 999), "the limit above it is the one that bites"


@pytest.mark.parametrize("root", ["/", "/jobs"])
def test_version_2(tmp_path: Path, root: str) -> None:
    top = tmp_path / "cg"
    folder = top / ("jobs/a" if root == "/" else "a")
    files(folder, memory_events="low 0\noom 3\noom_kill 1", memory_max="max", memory_current="7", memory_peak="8")
    cgroup = cgroup_of(7, proc(tmp_path, V2_ROWS, V2_MOUNT.format(mount=top, root=root)))
    assert cgroup is not None and cgroup.folder == folder
    assert (cgroup.kills, cgroup.limit_bytes, cgroup.used_bytes, cgroup.peak_bytes) == (1, None, 7, 8)


def test_nothing_there_is_no_error(tmp_path: Path) -> None:
    assert cgroup_of(7, tmp_path) is None and host_kills(tmp_path) is None
    empty = tmp_path / "cg"
    empty.mkdir()
    assert cgroup_of(7, proc(tmp_path, V2_ROWS, V2_MOUNT.format(mount=empty, root="/"))) is None, "no memory controller"
    assert host_kills(tmp_path / "proc") == 4


def test_of_this_process() -> None:
    memory = measure_self("a test")
    assert memory.peak_bytes is not None and memory.peak_bytes > 1 << 20
    assert memory.host_total_bytes is not None and "available of" in str(memory)


def test_in_words() -> None:
    memory = Memory(
        evidence="",
        peak_bytes=480 << 20,
        cgroup="/job",
        cgroup_limit_bytes=512 << 20,
        host_available_bytes=21 << 30,
        host_total_bytes=25 << 30,
    )
    assert str(memory) == "it held up to 480 MiB; cgroup /job: limit 512 MiB; host: 21 GiB available of 25 GiB"
    assert [size(n) for n in (0, 1023, 2048, 3 << 19, 1 << 40)] == ["0 B", "1023 B", "2 KiB", "1.5 MiB", "1.0 TiB"]

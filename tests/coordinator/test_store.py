"""The coordinator's file: durable, whole, and one owner."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from regrow.coordinator.store import Store, load
from regrow.core.errors import ConfigError, StateError
from regrow.core.membership_effects import Saved
from regrow.core.staff import Staff

SAVED = Saved(term=3, lives={"r0": 2}, floor=7, staff=Staff(target=2, places=("r0", "r1"), names=("r0", "r1"), lost=("r1",)))


def test_what_is_saved_is_loaded_and_nothing_else_is_left(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load() is None
    store.save(Saved(term=2))
    store.save(SAVED)
    assert store.load() == load(tmp_path) == SAVED
    assert os.listdir(tmp_path) == ["coordinator.json"]
    store.close()


def test_a_twin_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = Store(tmp_path)
    with pytest.raises(ConfigError, match="in use by another coordinator"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "coordinator.json").write_bytes(b'{"term":')
    with pytest.raises(StateError, match=r"coordinator.json is damaged"):
        load(tmp_path)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(SAVED)
    script = f"""
import resource, sys
from pathlib import Path
from regrow.coordinator.store import Store
from regrow.core.membership_effects import Saved
from regrow.core.staff import Staff
store = Store(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
try:
    store.save(Saved(term=4))
except OSError:
    sys.exit(5)
"""
    store.close()
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 5
    assert load(tmp_path) == SAVED
    assert os.listdir(tmp_path) == ["coordinator.json"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY

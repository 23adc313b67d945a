"""The benchmark of the control plane still runs, and what it measures is what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CONTROL = Path(__file__).parents[2] / "benchmarks" / "control.py"
DEADLINE_S = 120.0


@pytest.mark.process
def test_ten_members_are_measured(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    command = [sys.executable, CONTROL, "--members", "10", "--deaths", "3", "--pace", "0.2", "--json", found]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = map(json.loads, found.read_text().splitlines())
    assert (line["members"], line["deaths"]) == (10, 3)
    assert set(line["median_ms"]) == {"floor", "told", "applied", "entered"}
    assert line["change_bytes"] < 200, "a death travels as a change"

"""Small file systems of their own, mounted for one test."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """`mount OPTIONS PLACE`, and unmounted whatever happens."""
    place.mkdir()
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount {' '.join(options)} is not possible here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def image(path: Path, size_bytes: int) -> Path:
    """A file that holds an ext4, which commits nothing by itself for minutes: mount it with IMAGE_OPTIONS."""
    with path.open("wb") as file:
        file.truncate(size_bytes)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], check=True, capture_output=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mkfs.ext4 is not possible here: {error}")
    return path


IMAGE_OPTIONS = ("-t", "ext4", "-o", "loop,commit=300")

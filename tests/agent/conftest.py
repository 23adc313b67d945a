"""Hosts that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosting import ENTRY, Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(script: str, stdout: int | None = None, entry: str = ENTRY) -> Host:
        folder = tmp_path / str(len(hosts))
        folder.mkdir()
        hosts.append(Host(folder, script, stdout, entry))
        return hosts[-1]

    yield make
    for made in hosts:
        made.release()

"""Stores of every kind, each empty."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import neighbours
import pytest
import s3_service

from regrow.state.neighbour_store import TOKEN
from regrow.state.store import Store
from regrow.state.stores import open_store


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_service.serving(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def s3_url(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("s3fs", reason="pip install 'regrow[s3]'")
    for name, value in s3_service.environment(s3_port).items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_service.BUCKET}/{secrets.token_hex(4)}"


@pytest.fixture(scope="session")
def neighbour_at() -> Iterator[str]:
    """HOST:PORT of a process that keeps what it is given."""
    with neighbours.serving(4000) as running:
        yield str(running.endpoint)


@pytest.fixture
def neighbour_place(neighbour_at: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(TOKEN, neighbours.TOKEN_GIVEN)
    return neighbour_at


@pytest.fixture(params=["folder", "memory", "one-writer", "neighbour", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "folder":
            return str(tmp_path / "runs" / "store")
        case "memory":
            return f"memory://{secrets.token_hex(4)}"
        case "one-writer":
            return f"one-writer+file://{tmp_path}/runs/store"
        case "neighbour":
            return f"neighbour://{request.getfixturevalue('neighbour_place')}/{secrets.token_hex(4)}"
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)

"""Fixtures of the process tests: the undisturbed digests, and a guarantee that no job outlives its test."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import s3_service
from runs import TINY, Run, alone, trail


@pytest.fixture(scope="session")
def reference() -> str:
    """The digest of tiny.py run alone."""
    return alone()


@pytest.fixture(scope="session")
def digests() -> list[str]:
    """The digest of tiny.py run alone, after each number of steps."""
    return trail(401)


@pytest.fixture
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Run]]:
    """Of a test that fails the stories of all its jobs are shown, wherever it failed."""
    started: list[Run] = []
    failed = request.session.testsfailed

    def begin(
        *arguments: str,
        script: Path = TINY,
        script_args: tuple[str, ...] = (),
        run_dir: Path | None = None,
        before: tuple[str, ...] = (),
    ) -> Run:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Run(folder, *arguments, script=script, script_args=script_args, run_dir=run_dir, before=before))
        return started[-1]

    yield begin
    for run in started:
        run.kill()
        if request.session.testsfailed > failed:
            print(run.story())


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a real S3 service; the test is skipped where there is none."""
    with s3_service.serving(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def s3_url(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3_service.environment(s3_port).items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_service.BUCKET}/{secrets.token_hex(4)}"

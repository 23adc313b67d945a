"""An S3 service that drops requests, loses answers, stalls, is gone, refuses, or does not keep its conditions."""

import http.server
import logging
import secrets
import threading
import time
from collections.abc import Iterator

import pytest
import s3_service

from regrow.core.errors import ConfigError, InfraError
from regrow.state import s3
from regrow.state.fsspec_store import FsspecStore, reach
from regrow.state.stores import open_store

pytest.importorskip("s3fs", reason="pip install 'regrow[s3]'")
BODY = bytes(range(256)) * (1 << 18)
"""64 MiB: twice as many parts as are in flight at once."""


@pytest.fixture
def flaky(s3_port: int, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_service.Flaky]:
    with s3_service.Flaky(s3_port) as flaky:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{flaky.port}")
        yield flaky


@pytest.mark.parametrize("fault", ["refuse", "lose", "stall"])
def test_a_service_that_spoils_every_third_request_loses_nothing(flaky: s3_service.Flaky, s3_url: str, fault: str) -> None:
    store = reach(s3_url, patience_s=6)
    body, pointers = (BODY[: 20 << 20], 1) if fault == "stall" else (BODY, 4)  # each stall takes a third of the patience
    flaky.spoil(fault, every=3)
    store.put("step/shard", [memoryview(body), memoryview(b"tail")])
    for number in range(pointers):
        assert store.create(f"pointers/{number}", b"mine"), f"the answer about pointer {number} was lost, not the pointer"
        assert not store.create(f"pointers/{number}", b"mine")
    assert store.names() == ["pointers", "step"] and len(store.names("pointers")) == pointers
    got = memoryview(bytearray(len(body) + 4))
    store.read_into("step/shard", 0, got)
    assert got[:-4] == body and got[-4:] == b"tail"
    store.remove("pointers")
    assert store.names() == ["step"]
    assert flaky.spoilt >= 4


def test_a_service_that_stalls_is_given_up_in_time_and_used_again(flaky: s3_service.Flaky, s3_url: str) -> None:
    store = reach(s3_url, patience_s=1.5)
    store.put("step/shard", [memoryview(b"old")])
    flaky.spoil("stall", every=1)
    for ask in (
        lambda: store.put("step/shard", [memoryview(BODY)]),
        lambda: store.put("step/shard", [memoryview(b"new")]),
        lambda: store.create("step/shard", b"new"),
        lambda: store.read("step/shard"),
        lambda: store.read_into("step/shard", 0, memoryview(bytearray(3))),
        lambda: store.names(),
        lambda: store.remove("step/shard"),
    ):
        start_s = time.monotonic()
        with pytest.raises(InfraError, match=rf"{s3_url}.* no answer within 1.5 s; check the service"):
            ask()
        assert time.monotonic() - start_s < 10
    flaky.spoil("stall", every=0)
    assert store.read("step/shard") == b"old"
    store.put("step/shard", [memoryview(b"new")])
    assert store.read("step/shard") == b"new"


def test_a_failed_upload_leaves_nothing_with_the_service(flaky: s3_service.Flaky, s3_url: str) -> None:
    store = reach(s3_url, patience_s=20)
    assert store.names() == []

    def parts() -> Iterator[memoryview]:
        yield memoryview(BODY)

    flaky.spoil_matching("refuse", b"partNumber=3")
    with pytest.raises(InfraError, match="step/shard cannot be used"):
        store.put("step/shard", parts())
    assert flaky.spoilt > 0
    assert store.read("step/shard") is None and store.names() == []
    bucket, _, prefix = s3_url.removeprefix("s3://").partition("/")
    fs = s3.S3(60).fs
    uploads = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", [])
    assert uploads == []


def test_an_upload_whose_completion_is_told_to_nobody_is_recognised(flaky: s3_service.Flaky, s3_url: str) -> None:
    store = reach(s3_url, patience_s=20)
    flaky.spoil_matching("lose", b"uploadId=", times=1)
    store.put("step/shard", [memoryview(BODY)])
    assert flaky.spoilt == 1
    assert store.size_bytes("step/shard") == len(BODY)


def test_memory_is_bounded_by_the_parts_in_flight() -> None:
    views = [memoryview(BODY)[:5], memoryview(BODY)[5 : 3 * s3.PART_BYTES], memoryview(b""), memoryview(BODY)[:7]]
    pieces = list(s3._pieces(views, s3.PART_BYTES))
    assert [len(piece) for piece in pieces] == [s3.PART_BYTES] * 3 + [7]
    assert b"".join(pieces) == b"".join(views)
    assert list(s3._pieces([memoryview(b"")], 4)) == []


def test_a_missing_bucket_is_not_an_empty_store(s3_port: int, s3_url: str) -> None:
    store = open_store(f"s3://absent-{secrets.token_hex(4)}/run")
    for ask in (lambda: store.names(), lambda: store.read("file")):
        with pytest.raises(ConfigError, match="does not exist: create it, or correct the URL"):
            ask()


def test_wrong_credentials_and_no_service_are_told_without_a_secret(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    with (
        caplog.at_level(logging.DEBUG, "regrow"),
        pytest.raises(InfraError, match=r"is refused .*: check the credentials") as told,
    ):
        open_store(s3_url).put("file", [memoryview(b"x")])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InfraError, match=r"check the service and the way to it") as gone:
        reach(s3_url, patience_s=20).put("file", [memoryview(b"x")])
    for text in (str(told.value), str(gone.value), caplog.text):
        assert "another-secret" not in text and s3_service.SECRET not in text


class _Careless(http.server.BaseHTTPRequestHandler):
    """A service that takes everything, whatever the condition."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("ETag", '"0"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None: ...


def test_a_service_that_does_not_keep_the_condition_is_refused(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Careless)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ConfigError, match=r"overwrites although told not to \(If-None-Match: \*\)"):
            open_store(s3_url).create("pointers/1", b"mine")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_store_that_is_opened_asks_nothing_yet(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = open_store(s3_url + "/")
    assert isinstance(store, FsspecStore) and store.url == s3_url

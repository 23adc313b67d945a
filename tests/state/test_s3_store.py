"""An S3 service that drops requests, loses answers, stalls, is gone, refuses, or does not keep its conditions."""

import http.server
import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator

import pytest
import s3_service
from shelf import newest, same, save, small

from regrow.agent.opening import opened
from regrow.core.errors import ConfigError, InfraError
from regrow.core.retention import Retention
from regrow.shell.vaulting import Place, Unusable
from regrow.state.archive import Archive
from regrow.state.fsspec_store import FsspecStore, reach
from regrow.state.stores import open_store

s3 = pytest.importorskip("regrow.state.s3", reason="pip install 'regrow[s3]'", exc_type=ImportError)
BODY = bytes(range(256)) * (1 << 18)
"""64 MiB: twice as many parts as are in flight at once."""


@pytest.fixture
def flaky(s3_port: int, s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_service.Flaky]:
    with s3_service.Flaky(s3_port) as flaky:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{flaky.port}")
        yield flaky


@pytest.mark.parametrize("fault", ["refuse", "lose", "stall"])
def test_a_service_that_spoils_every_third_request_loses_nothing(flaky: s3_service.Flaky, s3_url: str, fault: str) -> None:
    store = reach(s3_url, patience_s=9)
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
    patient, store = reach(s3_url, patience_s=60), reach(s3_url, patience_s=1.5)
    patient.put("step/shard", [memoryview(b"old")])
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
        with pytest.raises(InfraError, match=rf"{s3_url}.* no answer within 1.5 s; check the service"):
            ask()
    flaky.spoil("stall", every=0)
    assert patient.read("step/shard") == b"old"
    patient.put("step/shard", [memoryview(b"new")])
    assert patient.read("step/shard") == b"new"


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


def test_an_upload_whose_completion_is_told_to_nobody_is_completed(flaky: s3_service.Flaky, s3_url: str) -> None:
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


class _Service(http.server.BaseHTTPRequestHandler):
    """What other services do and this one does not: it takes every put, whatever the condition, and it completes every
    upload and then knows nothing of it."""

    protocol_version = "HTTP/1.1"
    mark = ""

    def do_PUT(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        if self.path.endswith("uploads"):
            type(self).mark = self.headers["x-amz-meta-regrow-call"]
            self._answer(200, "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
        else:
            self._answer(404, "<Error><Code>NoSuchUpload</Code><Message>of such a name</Message></Error>")

    def do_HEAD(self) -> None:
        self._answer(200)

    def do_DELETE(self) -> None:
        self._answer(204)

    def _answer(self, code: int, text: str = "") -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(code)
        for name, value in {"ETag": '"0"', "Content-Length": str(len(text)), "x-amz-meta-regrow-call": self.mark}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def other_service(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def test_a_service_that_does_not_keep_the_condition_is_refused(other_service: None, s3_url: str) -> None:
    with pytest.raises(ConfigError, match=r"overwrites although told not to \(If-None-Match: \*\)"):
        open_store(s3_url).create("pointers/1", b"mine")
    answer = opened([Place(url=s3_url, every=1, retention=Retention())], 60.0)
    assert isinstance(answer, Unusable) and "overwrites although told not to" in answer.why, "no job begins to save there"


def test_a_completed_upload_that_the_service_forgot_is_recognised(
    other_service: None, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(s3_url).put("step/shard", [memoryview(BODY)])
    monkeypatch.setattr(_Service, "do_HEAD", lambda self: self._answer(404))
    with pytest.raises(InfraError, match="of such a name"):
        open_store(s3_url).put("step/shard", [memoryview(BODY)])


HARMS: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "flipped": (lambda data: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:], "is damaged between byte"),
    "cut": (lambda data: data[:-1], r"has \d+ bytes, the manifest says"),
    "absent": (lambda data: None, "is missing"),
}


@pytest.mark.parametrize("file", ["shard-00000.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", HARMS)
def test_an_object_that_was_harmed_is_named_and_the_checkpoint_before_it_serves(s3_url: str, harm: str, file: str) -> None:
    store = open_store(s3_url)
    for step in (1, 2):
        save(store, step)
    path = f"{Archive(store).pointers()[0][0].folder}/{file}"
    change, words = HARMS[harm]
    data = store.read(path)
    assert data is not None
    store.remove(path)
    if (harmed := change(data)) is not None:
        store.put(path, [memoryview(harmed)])
    step, state, damages = newest(Archive(store))
    assert step == 1 and same(state, small(1))
    (damage,) = damages
    assert f"{s3_url}/{path}" in damage and (file == "manifest.json" or re.search(words, damage)), damage


def test_a_store_that_is_opened_asks_nothing_yet(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = open_store(s3_url + "/")
    assert isinstance(store, FsspecStore) and store.url == s3_url

"""How an S3 service is written to: an upload in parts, which is nothing until it is completed, and a conditional put.

Files carry a mark of the very call that wrote them. A request whose answer was lost is sent again, and may then be refused
because its first copy had arrived: the mark tells this from somebody else's file.

Parts of a writer that was killed stay with the service, unseen and paid for: give the bucket a rule that aborts incomplete
uploads after a day.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aiohttp
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # type: ignore[import-untyped]
from botocore.exceptions import ConnectionError as BotocoreConnectionError
from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
from fsspec.asyn import sync  # type: ignore[import-untyped]
from s3fs import S3FileSystem  # type: ignore[import-untyped]

from regrow.core.errors import ConfigError
from regrow.shell.faultpoint import faultpoint
from regrow.shell.pacing import Pacer

PART_BYTES = 8 << 20
MOST_PARTS = 10_000
IN_FLIGHT = 4
"""Parts on their way at once, each a copy in memory."""
_MARK = "regrow-call"
_REFUSED = ("PreconditionFailed", "412")
_AGAIN = ("ConditionalRequestConflict", "OperationAborted", "409")
_MOST_DELETED = 1000
_RETRY_S = 0.2
_WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6)
_PASSING = (
    TimeoutError,
    ConnectionError,
    HTTPClientError,
    BotocoreConnectionError,
    ResponseParserError,
    aiohttp.ClientError,
)
_PASSING_CODES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "500", "502", "503", "504")


class S3:
    errors: tuple[type[Exception], ...] = (OSError, BotoCoreError, ClientError, aiohttp.ClientError)

    def __init__(self, patience_s: float, pacer: Pacer | None = None) -> None:
        self._pacer = pacer or Pacer()
        self._patience_s = patience_s
        self._attempt_s = patience_s / 3  # what a lost packet swallowed is asked for again, and more than once
        self.fs = S3FileSystem(
            skip_instance_cache=True,  # its client and its timeouts are this store's alone
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": self._attempt_s,
                "read_timeout": self._attempt_s,
                "max_pool_connections": 32,
                "retries": {"total_max_attempts": 1},
            },
        )
        self.fs.retries = 1  # one patience, and it is ours: theirs does not see an upload that stalls
        self._keeps_conditions = False

    def ask(self, method: str, *arguments: object, **options: object) -> Any:
        return sync(self.fs.loop, self._patiently, lambda: getattr(self.fs, f"_{method}")(*arguments, **options))

    def put(self, place: str, views: list[memoryview]) -> None:
        sync(self.fs.loop, self._put, _Object(place), views)

    def create(self, place: str, data: bytes) -> bool:
        return bool(sync(self.fs.loop, self._create, _Object(place), data))

    def remove(self, place: str) -> None:
        sync(self.fs.loop, self._remove, _Object(place))

    async def _put(self, to: "_Object", views: list[memoryview]) -> None:
        size_bytes = sum(len(view) for view in views)
        part_bytes = max(PART_BYTES, -(-size_bytes // MOST_PARTS))
        if size_bytes > part_bytes:
            await self._upload(to, _pieces(views, part_bytes))
        else:
            await self._paced(size_bytes)
            faultpoint("save-block")
            await self._ask("put_object", to, Body=b"".join(views))

    async def _upload(self, to: "_Object", pieces: Iterator[bytes]) -> None:
        upload = (await self._ask("create_multipart_upload", to, Metadata={_MARK: to.mark}))["UploadId"]
        sent: list[dict[str, object]] = []
        numbered = enumerate(pieces, 1)

        async def send() -> None:
            for number, piece in numbered:
                await self._paced(len(piece))
                faultpoint("save-block")
                answer = await self._ask("upload_part", to, UploadId=upload, PartNumber=number, Body=piece)
                sent.append({"PartNumber": number, "ETag": answer["ETag"]})

        try:
            await _all(*(send() for _ in range(IN_FLIGHT)))
            sent.sort(key=lambda part: int(str(part["PartNumber"])))
            faultpoint("save-block")
            await self._ask("complete_multipart_upload", to, UploadId=upload, MultipartUpload={"Parts": sent})
        except self.errors as error:
            if isinstance(error, FileNotFoundError) and await self._is_ours(to):
                return  # it was completed, and the answer was lost
            with contextlib.suppress(*self.errors):
                await self._ask("abort_multipart_upload", to, UploadId=upload)
            raise

    async def _paced(self, size_bytes: int) -> None:
        delay_s = self._pacer.delay_s(size_bytes)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        self._pacer.passed(size_bytes)

    async def _create(self, to: "_Object", data: bytes) -> bool:
        faultpoint("save-block")
        if not await self._put_if_absent(to, data):
            return False
        if not self._keeps_conditions:
            # Once per store: a service that does not know the condition ignores it, and overwrites.
            if await self._put_if_absent(_Object(to.place), data):
                raise ConfigError(
                    f"the service of {to.place} overwrites although told not to (If-None-Match: *): two savers could "
                    "destroy each other's pointers; use a service that keeps this condition, or a folder"
                )
            self._keeps_conditions = True
        return True

    async def _put_if_absent(self, to: "_Object", data: bytes) -> bool:
        stop_s = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                await self._ask("put_object", to, Body=data, IfNoneMatch="*", Metadata={_MARK: to.mark})
                return True
            except FileExistsError:
                return await self._is_ours(to)
            except OSError as error:
                code = _code(error)
                if code in _REFUSED:
                    return await self._is_ours(to)
                if code not in _AGAIN or asyncio.get_running_loop().time() > stop_s:
                    raise
            await asyncio.sleep(_RETRY_S)  # somebody else's is being decided on

    async def _is_ours(self, to: "_Object") -> bool:
        try:
            found = await self._ask("head_object", to)
        except FileNotFoundError:
            return False
        return bool(found.get("Metadata", {}).get(_MARK) == to.mark)

    async def _remove(self, to: "_Object") -> None:
        below = await self._below(to)
        # Services that keep real folders show them until they are deleted by name, the deepest first.
        folders = {key[: at + 1] for key in below for at, letter in enumerate(key) if letter == "/" and at >= len(to.key)}
        keys = [*below, *sorted(folders | {f"{to.key}/"}, key=len, reverse=True), to.key]
        for start in range(0, len(keys), _MOST_DELETED):
            objects = [{"Key": key} for key in keys[start : start + _MOST_DELETED]]
            answer = await self._ask("delete_objects", to, Delete={"Objects": objects, "Quiet": True})
            for failed in answer.get("Errors", ()):
                raise PermissionError(f"{failed.get('Key')} was not deleted: {failed.get('Code')} {failed.get('Message')}")

    async def _below(self, to: "_Object") -> list[str]:
        keys: list[str] = []
        more: dict[str, str] = {}
        while True:
            page = await self._ask("list_objects_v2", to, Prefix=f"{to.key}/", **more)
            keys += [found["Key"] for found in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return keys
            more = {"ContinuationToken": page["NextContinuationToken"]}

    async def _ask(self, method: str, to: "_Object", **arguments: object) -> Any:
        return await self._patiently(lambda: self.fs._call_s3(method, Bucket=to.bucket, Key=to.key, **arguments))

    async def _patiently(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Again after a failure that may pass, until patience ends or a connection that breaks at once has done so often."""
        clock = asyncio.get_running_loop().time
        stop_s = clock() + self._patience_s
        waits_s = iter(_WAITS_S)
        while True:
            try:
                return await asyncio.wait_for(ask(), min(self._attempt_s, stop_s - clock()))
            except self.errors as error:
                wait_s = next(waits_s, None)
                if wait_s is None or clock() + wait_s >= stop_s or not _may_pass(error):
                    raise
            await asyncio.sleep(wait_s)


class _Object:
    """Where a call writes, and its mark."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.bucket, _, self.key = place.partition("/")
        self.mark = secrets.token_hex(16)


async def _all(*works: Coroutine[Any, Any, None]) -> None:
    """All of them; the first failure ends the others, and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _pieces(views: list[memoryview], size_bytes: int) -> Iterator[bytes]:
    """Copies of so many bytes each, the last one of what is left."""
    held: list[memoryview] = []
    room = size_bytes
    for view in views:
        rest = view
        while rest:
            held.append(rest[:room])
            rest, room = rest[room:], room - len(held[-1])
            if room == 0:
                yield b"".join(held)
                held, room = [], size_bytes
    if held:
        yield b"".join(held)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, _PASSING) or _code(error) in _PASSING_CODES


def _code(error: Exception) -> str:
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))

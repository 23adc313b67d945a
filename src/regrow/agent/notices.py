"""Watches for notices that the machine will be taken away: a file that appears, an answer over HTTP.

What counts as a notice is core's (core.notices). A thread for each, since a file system or a service may never answer, and
nobody else is to wait for it. Signals come to whoever holds the loop, and not here.
"""

import asyncio
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from regrow.core.notices import NoticeConfig, is_notice

_FILE_S, _URL_S = 0.1, 1.0
"""From one look to the next."""
_TIMEOUT_S = 2.0
_BODY_BYTES = 1 << 16
_HEADERS = {"Metadata-Flavor": "Google", "Metadata": "true"}
"""What Google's and Azure's services ask of whoever reads them; to others they mean nothing."""


class NoticeWatch:
    """`notify` is called on the loop, with what was seen; `say` with trouble, once for each time."""

    def __init__(
        self,
        config: NoticeConfig,
        loop: asyncio.AbstractEventLoop,
        notify: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._loop = loop
        self._notify = notify
        self._say = say
        self._closed = threading.Event()
        self._trouble = ""

    def open(self) -> None:
        for what, watch in ((self._config.file, self._watch_file), (self._config.url, self._watch_url)):
            if what:
                threading.Thread(target=watch, name="regrow-notice", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch_file(self) -> None:
        while not os.path.lexists(self._config.file):
            if self._closed.wait(_FILE_S):
                return
        self._call(self._notify, f"there is a file {self._config.file}")

    def _watch_url(self) -> None:
        while not self._closed.is_set():
            status, body, trouble = _asked(self._config.url)
            if trouble != self._trouble and (trouble == "" or self._trouble == ""):
                self._call(self._say, trouble or f"{self._config.url} answers")
                self._trouble = trouble
            if not trouble and is_notice(status, body):
                self._call(self._notify, f"{self._config.url} says {body[:200].decode('utf-8', 'replace').strip()!r}")
                return
            self._closed.wait(_URL_S)

    def _call(self, function: Callable[[str], Any], text: str) -> None:
        try:
            self._loop.call_soon_threadsafe(self._unless_closed, function, text)
        except RuntimeError:
            pass  # the loop is closed: nobody wants to know any more

    def _unless_closed(self, function: Callable[[str], Any], text: str) -> None:
        if not self._closed.is_set():
            function(text)


class _Faithful(urllib.request.HTTPRedirectHandler):
    """A service of this machine sends nobody elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _asked(url: str) -> tuple[int, bytes, str]:
    """Status, body, and why there is no answer; never through a proxy: such services are this machine's own."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Faithful)
    try:
        with opener.open(urllib.request.Request(url, headers=_HEADERS), timeout=_TIMEOUT_S) as answer:
            return answer.status, answer.read(_BODY_BYTES), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, b"", ""
    except Exception as error:  # the edge of a service: whatever it says instead of HTTP is no notice
        return 0, b"", f"--notice-url {url} does not answer ({error}): until it does, no notice is heard from there"

"""Hosts for tests: namespaces with addresses of their own on a bridge that no other traffic reaches. To kill a host's first
process is to turn its power off: the kernel ends all that runs there at that moment."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from runs import wait_for

_APART = ("unshare", "--net", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child")


class Host:
    """Its first process sleeps."""

    def __init__(self) -> None:
        self._above = subprocess.Popen([*_APART, "sleep", "infinity"], start_new_session=True, stderr=subprocess.DEVNULL)
        self.first = int(str(wait_for(self._child, "the first process of a host", 20.0)))

    def _child(self) -> str:
        children = Path(f"/proc/{self._above.pid}/task/{self._above.pid}/children").read_text().split()
        is_there = children and os.readlink(f"/proc/{children[0]}/exe").endswith("sleep")
        return children[0] if is_there else ""

    @property
    def inside(self) -> tuple[str, ...]:
        """What to put in front of a command."""
        return ("nsenter", "--target", str(self.first), "--net", "--pid", "--mount", "--ipc", "--uts")

    def does(self, *command: str) -> None:
        subprocess.run(["nsenter", "--target", str(self.first), "--net", *command], check=True)

    def power_off(self) -> None:
        if self._above.poll() is None:
            os.kill(self.first, signal.SIGKILL)
        self._above.wait()


class Network:
    """A bridge on a host of its own, and hosts around it."""

    def __init__(self) -> None:
        self._bridge = Host()
        self._bridge.does("ip", "link", "add", "br0", "type", "bridge")
        self._bridge.does("ip", "link", "set", "br0", "up")
        self._hosts: list[Host] = []

    def host(self) -> tuple[Host, str]:
        """Another one, and its address."""
        host = Host()
        self._hosts.append(host)
        number = len(self._hosts)
        name, address = f"v{number}", f"10.77.0.{number}"
        self._bridge.does("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.first))
        self._bridge.does("ip", "link", "set", name, "master", "br0", "up")
        host.does("ip", "link", "set", "lo", "up")
        host.does("ip", "addr", "add", f"{address}/24", "dev", "eth0")
        host.does("ip", "link", "set", "eth0", "up")
        return host, address

    def plug(self, host: Host, is_in: bool) -> None:
        """The cable of this host."""
        number = 1 + self._hosts.index(host)
        self._bridge.does("ip", "link", "set", f"v{number}", "up" if is_in else "down")

    def close(self) -> None:
        for host in [*self._hosts, self._bridge]:
            host.power_off()


@contextmanager
def connected() -> Iterator[Network]:
    """Skipped where this user may make no namespaces."""
    if subprocess.run([*_APART, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces may be made here")
    network = Network()
    try:
        yield network
    finally:
        network.close()

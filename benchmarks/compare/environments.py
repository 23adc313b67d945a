"""An environment of its own for each peer, below runs/compare/environments.

Each is a venv that holds the peer and what it needs; torch lies once, in an environment that all of them see, in the version
of constraints.txt: whatever torch a peer would accept, all train with the same. What is there already is left alone, so an
interrupted call goes on where it was, and after a whole one nothing is fetched any more. A peer that cannot be installed is
noted with the reason, and the others go on.

    python benchmarks/compare/environments.py [NAME ...]
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "runs" / "compare" / "environments"
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True, kw_only=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    has_torch_of_its_own: bool = False
    platform: str = ""
    """Take the first requirement's wheel as for this platform, whatever pip thinks of the machine."""

    @property
    def folder(self) -> Path:
        return HOME / self.name

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> str:
        return str(self.bin / "python")

    @property
    def failure(self) -> Path:
        """What pip said when it could not."""
        return HOME / f"{self.name}.failed"

    def unavailable(self) -> str:
        if self.is_ready():
            return ""
        if self.failure.exists():
            errors = [line for line in self.failure.read_text().splitlines() if line.startswith("ERROR")]
            return f"pip could not install {' '.join(self.requirements)}: {errors[-1] if errors else self.failure}"
        return f"there is no environment {self.folder}: run `python benchmarks/compare/environments.py {self.name}`"

    def is_ready(self) -> bool:
        return self._mark.exists() and self._mark.read_text() == self._holds

    def make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.failure.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        if not self.has_torch_of_its_own:
            (_packages(self.folder) / "base.pth").write_text(f"{_packages(BASE.folder)}\n")
        try:
            if self.platform:
                self._install("--no-deps", *self._foreign(), self.requirements[0])
            self._install(*self.requirements)
        except subprocess.CalledProcessError as error:
            self.failure.write_text(error.stdout)
        else:
            self._mark.write_text(self._holds)

    def _install(self, *arguments: str) -> None:
        subprocess.run(
            [self.python, "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        )

    def _foreign(self) -> list[str]:
        return [f"--platform={self.platform}", "--only-binary=:all:", f"--target={_packages(self.folder)}"]

    @property
    def _mark(self) -> Path:
        return self.folder / "ready"

    @property
    def _holds(self) -> str:
        return "\n".join([*self.requirements, CONSTRAINTS.read_text(), sys.version])


def _packages(folder: Path) -> Path:
    return Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))


BASE = Environment(name="base", requirements=("torch", "numpy"), has_torch_of_its_own=True)
TORCHFT_NIGHTLY = Environment(name="torchft-nightly", requirements=("torchft-nightly==2026.10.26",))
TORCHFT_RELEASE = Environment(name="torchft-release", requirements=("torchft==0.2.0",))
NVRX = Environment(name="nvrx", requirements=("nvidia-resiliency-ext==0.6.0",), platform="manylinux_2_39_x86_64")
"""The newest for Python 3.11. Its wheel asks for a glibc that not every machine has, for a part that times GPU kernels."""
DLROVER = Environment(name="dlrover", requirements=("dlrover[k8s,torch]==0.6.1", "protobuf"))
"""Its local master, too, imports what it asks for under `k8s`, and protobuf, for which it does not ask."""
TORCHSNAPSHOT = Environment(name="torchsnapshot", requirements=("torchsnapshot==0.1.0",))
PEERS = (TORCHFT_NIGHTLY, TORCHFT_RELEASE, NVRX, DLROVER, TORCHSNAPSHOT)


def make_all(environments: tuple[Environment, ...] = PEERS) -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    os.environ.pop("PYTHONPATH", None)
    wanted = [each for each in (BASE, *environments) if not each.is_ready()]
    for number, each in enumerate(wanted, start=1):
        print(f"environment {number} of {len(wanted)}: {' '.join(each.requirements)} ... ", end="", flush=True)
        begun_s = time.monotonic()
        each.make()
        print("ready" if each.is_ready() else each.unavailable(), f"after {time.monotonic() - begun_s:.0f} s", flush=True)
        if each is BASE and not each.is_ready():
            raise SystemExit(f"no peer can run without torch; the whole story is in {each.failure}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(each.name for each in PEERS)}; default: all"
    )
    args = parser.parse_args()
    known = {each.name: each for each in PEERS}
    unknown = [name for name in args.names if name not in known]
    if unknown:
        parser.error(f"no environment {', '.join(unknown)}; there are {', '.join(known)}")
    make_all(tuple(known[name] for name in args.names) or PEERS)


if __name__ == "__main__":
    main()

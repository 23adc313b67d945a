"""The comparison lives beside the other benchmarks and is no part of the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

"""An entry that only runs the script: the agent's tests need no torch and no job."""

import runpy
import sys


def run_script(script: str, argv: list[str]) -> int:
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    sys.stdout.flush()
    return 0

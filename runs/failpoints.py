"""Places where a worker can be made to die, for the demo and the tests. Off, and costing nothing, unless switched on.

FAILPOINTS names a folder. A file `kill` in it lists points, one a line: `claim-0042:step7:entered` (run, position,
boundary) or `#12` (the twelfth boundary that this process reaches). A point is used up by the first process that
reaches it, which then ends itself with SIGKILL. Every boundary reached is noted in the file `reached`. Imports nothing
of ours.
"""

import os
import signal
from pathlib import Path

_folder = os.environ.get("FAILPOINTS", "")
_reached = 0


def reach(run_key: str, position: int, boundary: str) -> None:
    """Die here by SIGKILL if this point was asked for and not used up before."""
    if _folder:
        _die_if_asked(Path(_folder), f"{run_key}:step{position}:{boundary}")


def switch(folder: str) -> None:
    """Switch failpoints on for this process (a test's forked worker), or off with an empty folder."""
    global _folder, _reached
    _folder, _reached = folder, 0


def _die_if_asked(folder: Path, point: str) -> None:
    global _reached  # noqa: PLW0603
    _reached += 1
    with open(folder / "reached", "a") as notes:
        notes.write(f"{os.getpid()} {point}\n")
    try:
        asked = (folder / "kill").read_text().split()
    except FileNotFoundError:
        return
    for name in (point, f"#{_reached}"):
        if name in asked and _use_up(folder, name, point):
            os.kill(os.getpid(), signal.SIGKILL)


def _use_up(folder: Path, name: str, point: str) -> bool:
    # Exclusive: of two processes at the same point only one dies.
    try:
        with open(folder / f"died-{name.replace(':', '-')}", "x") as mark:
            mark.write(f"{os.getpid()} {point}")
    except FileExistsError:
        return False
    return True

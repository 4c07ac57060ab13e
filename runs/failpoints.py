"""Places where a worker can be made to die or to freeze, for the demo and the tests. Off, and costing nothing, unless
switched on.

FAILPOINTS names a folder. A file `kill` in it lists points, one a line: `claim-0042:step7:entered` (run, position,
boundary) or `#12` (the twelfth boundary that this process reaches). A point is used up by the first process that
reaches it, which then ends itself with SIGKILL. A file `freeze` does the same with SIGSTOP. Every boundary reached is
noted in the file `reached`. Imports nothing of ours.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

_DEEDS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}
_folder = os.environ.get("FAILPOINTS", "")
_reached = 0
_listener: Callable[[str], None] | None = None


def reach(run_key: str, position: int, boundary: str) -> None:
    """Die by SIGKILL or freeze by SIGSTOP here, if this point was asked for and not used up before."""
    if _listener is not None:
        _listener(f"{run_key}:step{position}:{boundary}")
    if _folder:
        _do_what_is_asked(Path(_folder), f"{run_key}:step{position}:{boundary}")


def listen(listener: Callable[[str], None] | None) -> None:
    """Tell this function each point that this process reaches, or nobody any more. For the test kit."""
    global _listener  # noqa: PLW0603
    _listener = listener


def switch(folder: str) -> None:
    """Switch failpoints on for this process (a test's forked worker), or off with an empty folder."""
    global _folder, _reached
    _folder, _reached = folder, 0


def _do_what_is_asked(folder: Path, point: str) -> None:
    global _reached  # noqa: PLW0603
    _reached += 1
    with open(folder / "reached", "a") as notes:
        notes.write(f"{os.getpid()} {point}\n")
    for deed, number in _DEEDS.items():
        asked = _listed(folder / deed)
        for name in (point, f"#{_reached}"):
            if name in asked and _use_up(folder / f"{deed}-{name.replace(':', '-')}", point):
                os.kill(os.getpid(), number)


def _listed(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except FileNotFoundError:
        return []


def _use_up(mark: Path, point: str) -> bool:
    # Exclusive: of two processes at the same point only one dies.
    try:
        with mark.open("x") as note:
            note.write(f"{os.getpid()} {point}")
    except FileExistsError:
        return False
    return True

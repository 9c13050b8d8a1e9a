"""A training that kills itself, as `kill -9` would, at the N-th point at which something could be lost.

    python tests/integration/killed_training.py POINT COMMAND…

Points are counted in the main process: the beginning and the end of an iteration, each case of a refresh, the middle of
each write of weights and checkpoints, the moments before and after each file takes its place. Point 0 kills nowhere,
and prints how many there are.
"""

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAIN, passed = os.getpid(), 0


def point(last: int) -> None:
    global passed
    if os.getpid() == MAIN:
        passed += 1
        if passed == last:
            os.kill(MAIN, signal.SIGKILL)


def around(owner: Any, name: str, before: Callable[..., None], after: Callable[..., None]) -> None:
    function = getattr(owner, name)

    def called(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        result = function(*args, **kwargs)
        after(*args, **kwargs)
        return result

    setattr(owner, name, called)


def plant(last: int) -> None:
    import torch
    from monai.engines import SupervisedTrainer

    import bundle.training.pseudo_labels as pseudo_labels
    from bundle.training.trainer import PannTrainer

    def here(*args: Any, **kwargs: Any) -> None:
        point(last)

    def half_written(content: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if passed + 1 == last and os.getpid() == MAIN:
            path = Path(file if isinstance(file, str | Path) else file.name)
            os.truncate(path, path.stat().st_size // 2)
        point(last)

    around(os, "replace", here, here)
    around(torch, "save", lambda *args, **kwargs: None, half_written)
    around(pseudo_labels, "complete_case", here, lambda *args, **kwargs: None)
    for trainer in (SupervisedTrainer, PannTrainer):
        around(trainer, "_iteration", here, here)


if __name__ == "__main__":
    plant(int(sys.argv[1]))
    sys.argv = ["monai.bundle", *sys.argv[2:]]
    try:
        runpy.run_module("monai.bundle", run_name="__main__", alter_sys=True)
    finally:
        print("points:", passed)

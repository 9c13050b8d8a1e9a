# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A process that has torch and MONAI loaded, and forks a child for each command: 200 commands load them once.

A child leaves through the bottom of this file as any program does, so that exit codes, `sys.excepthook` and exit
handlers are the interpreter's own. Requests and answers are lines of JSON; a request's `op` is run, start, poll or
stop.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

LOADED = (  # what commands load, but openvino, which starts threads: a process with threads cannot be forked safely
    "monai.bundle", "monai.engines", "monai.handlers", "monai.transforms", "monai.networks.nets", "ignite.engine",
    "highdicom", "pydicom", "nibabel", "pandas", "scipy.ndimage", "matplotlib", "jinja2", "fire", "yaml",
    "bundle.checks.cases", "bundle.evaluation.scores", "bundle.inference.segmenters", "bundle.training.trainer",
    "bundle.training.dataset", "bundle.training.quality", "bundle.transforms",
)  # fmt: skip
ITK_READERS = ("MetaImageIO", "NrrdImageIO", "GDCMImageIO", "ImageFileReader")  # loaded when they are first asked for
CAPABILITIES_VERSION = 0x20080522  # of Linux, two words of each kind


class CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class CapabilityWords(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def obey_permissions() -> None:
    """Root may read and write everything; give that up, so that a read-only folder is one."""
    header, none = CapabilityHeader(CAPABILITIES_VERSION, 0), (CapabilityWords * 2)()
    if os.geteuid() == 0 and ctypes.CDLL(None).capset(ctypes.byref(header), none):
        raise OSError("capset failed")


class Hiding:
    """A finder of modules that does not find some packages, as if they were not installed.

    Args:
        finder: that finds all others.
        packages: names of those.
    """

    def __init__(self, finder: Any, packages: Sequence[str]) -> None:
        self.finder, self.packages = finder, packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.split(".")[0] in self.packages else self.finder.find_spec(name, path, target)


def load() -> None:
    for name in LOADED:
        importlib.import_module(name)
    itk = importlib.import_module("itk")
    for name in ITK_READERS:
        getattr(itk, name)
    assert len(os.listdir("/proc/self/task")) == 1, "a library has started a thread"
    gc.freeze()  # children need not look through all that is loaded, above all not when they end: a second for each


def redirect(descriptor: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, descriptor)
    os.close(file)


def become(request: dict[str, Any]) -> None:
    """Turn this process, just forked, into what `python -m MODULE …` in that folder starts as."""
    os.setsid()
    redirect(1, request["stdout"])
    redirect(2, request["stderr"])
    os.chdir(request["folder"])
    os.environ.update(request["variables"])
    sys.path[0], tempfile.tempdir = request["folder"], None
    sys.argv = list(request["words"])
    for name in [name for name in sys.modules if name.split(".")[0] in request["without"]]:
        del sys.modules[name]
    if request["without"]:
        sys.meta_path = [Hiding(finder, request["without"]) for finder in sys.meta_path]  # type: ignore[misc]
    obey_permissions()
    if request["largest_file"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"], request["largest_file"]))


def stop(child: int) -> int:
    """Kill a child and all that it has started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def runs(child: int) -> bool:
    """Whether a child has not ended; it can be stopped in either case."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def wait(child: int, seconds: float) -> int | None:
    """Its exit code; None if it has not ended in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    stop(child)
    return None


def serve() -> dict[str, Any]:
    """Answer requests until there are none; returns in the children only, with what they are to run."""
    with os.fdopen(os.dup(0)) as requests, os.fdopen(os.dup(1), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        for line in requests:
            request = json.loads(line)
            if request["op"] == "stop":
                answer: dict[str, Any] = {"code": stop(request["child"])}
            elif request["op"] == "poll":
                answer = {"runs": runs(request["child"])}
            else:
                child = os.fork()
                if child == 0:
                    return request
                answer = {"child": child} if request["op"] == "start" else {"code": wait(child, request["seconds"])}
            print(json.dumps(answer), file=answers, flush=True)
    sys.exit()


if __name__ == "__main__":
    load()
    print(json.dumps({"ready": True}), flush=True)
    asked = serve()
    become(asked)
    runpy.run_module(asked["words"][0], run_name="__main__", alter_sys=True)

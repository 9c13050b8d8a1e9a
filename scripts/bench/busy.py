# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a training step costs beside other programs, under several ways in which OpenMP threads wait for each other.

`python -m scripts.bench.busy` is the process that is measured: it loads torch under the variables it was started with.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psutil
from tqdm import tqdm

from bundle.processes import PATIENT
from scripts.common import print_table
from scripts.runs import ROOT

__all__ = ["run"]

CHANNELS = (24, 48, 96, 192, 256)  # the 2D U-Net of the demo
DEFAULT, PASSIVE = "default", "PASSIVE"
ALONE, CROWDED = "alone", "crowded"
BUSY = "while True: pass"
NOT_QUIET, GLANCE = 20.0, 0.5  # per cent of all cores, as seen within so many seconds


@dataclass
class Measured:
    """A process whose steps are timed, and what it took for them, seconds: alone and crowded.

    Args:
        policy: how its threads wait, for the table.
        variables: that make them do so.
        threads: of the process.
        batch: slices in a mini-batch.
        size: edge of a slice in pixels.
    """

    policy: str
    variables: dict[str, str]
    threads: int
    batch: int
    size: int
    times: dict[str, list[float]] = field(default_factory=lambda: {ALONE: [], CROWDED: []})

    @contextmanager
    def started(self) -> Iterator[None]:
        """The process, ready for its first step, until the block ends."""
        inherited = {name: value for name, value in os.environ.items() if name not in PATIENT}
        command = [sys.executable, "-W", "ignore", "-m", "scripts.bench.busy", str(self.batch), str(self.size)]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**inherited, **self.variables, "OMP_NUM_THREADS": str(self.threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as self.process:
            try:
                self.take_steps(2)  # the first ones allocate
                yield
            finally:
                self.process.kill()

    def take_steps(self, count: int) -> list[float]:
        """Seconds of so many steps, taken now."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        return list(json.loads(self.process.stdout.readline()))


def policies(spins: Sequence[int]) -> dict[str, dict[str, str]]:
    """OpenMP's default, sleeping at once, and sleeping after so many turns of a loop."""
    passive = {"OMP_WAIT_POLICY": "PASSIVE"}
    counted = {f"{PASSIVE}, {count} spins": {**passive, "GOMP_SPINCOUNT": str(count)} for count in spins}
    return {DEFAULT: {}, PASSIVE: passive, **counted}


@contextmanager
def competitors(count: int) -> Iterator[None]:
    """So many processes that do nothing but use a core each, until the block ends."""
    processes = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        time.sleep(0.2)  # until all of them have begun
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(rounds: int, steps: int, spins: Sequence[int], threads: int | None, batch: int, size: int) -> None:
    cores = os.cpu_count() or 1
    if psutil.cpu_percent(GLANCE) > NOT_QUIET:
        print("note: other programs are using this machine, so that nothing here is measured alone")
    used = cores if threads is None else threads
    measured = [Measured(policy, variables, used, batch, size) for policy, variables in policies(spins).items()]
    with ExitStack() as stack:
        for one in measured:
            stack.enter_context(one.started())
        for turn in tqdm(range(rounds), desc="rounds", unit="round"):
            order = measured[:: 1 if turn % 2 else -1]
            for one in order:
                one.times[ALONE] += one.take_steps(steps)
            with competitors(cores):
                for one in order:
                    one.times[CROWDED] += one.take_steps(steps)
    print(f"training step of the demo's U-Net, {batch} slices of {size}×{size}, {used} threads, {cores} cores;")
    print(f"medians of {rounds * steps} steps; crowded: one busy process per core beside it")
    print_table(rows_of(measured), numbers=True)
    print(verdict(measured))


def rows_of(measured: Sequence[Measured]) -> list[list[str]]:
    """Seconds of each policy, and how many times those of the default; the mean shows steps that took very long."""
    rows = [["threads wait", "alone, s", "× default", "crowded, s", "× default", "crowded / alone", "crowded, mean s"]]
    base = medians(measured[0])
    for one in measured:
        alone, crowded = medians(one)
        ratios = (alone / base[0], crowded / base[1], crowded / alone)
        cells = [f"{alone:.4f}", f"{ratios[0]:.2f}", f"{crowded:.4f}", f"{ratios[1]:.2f}", f"{ratios[2]:.1f}"]
        rows.append([one.policy, *cells, f"{statistics.mean(one.times[CROWDED]):.4f}"])
    return rows


def medians(one: Measured) -> tuple[float, float]:
    return statistics.median(one.times[ALONE]), statistics.median(one.times[CROWDED])


def verdict(measured: Sequence[Measured]) -> str:
    """What the table means, in a sentence."""
    base_alone, base_crowded = medians(measured[0])
    best = min(measured[1:], key=lambda one: sum(medians(one)))
    alone, crowded = medians(best)
    return (
        f'threads that wait as "{best.policy}" make a step {base_crowded / crowded:.1f} times as fast as by default '
        f"beside other programs, and take {alone / base_alone:.2f} times as long alone"
    )


# --- The process that is measured ------------------------------------------------------------------------------------
def training_step(batch: int, size: int) -> Callable[[], None]:
    """One step of stage 1: the demo's network, loss and optimizer on noise."""
    import torch  # here: the parent needs none of it
    from monai.networks.nets import UNet

    from bundle.organs import Vocabulary
    from bundle.training.losses import SupervisedLoss

    torch.manual_seed(0)
    classes = Vocabulary().out_channels
    network = UNet(2, 1, classes, CHANNELS, (2, 2, 2, 2), num_res_units=0)
    optimizer, loss = torch.optim.Adam(network.parameters(), 1e-3), SupervisedLoss("dice_ce")
    image = 255 * torch.rand(batch, 1, size, size)
    label = torch.randint(0, classes, image.shape, dtype=torch.uint8)

    def step() -> None:
        optimizer.zero_grad()
        loss(network(image), label).backward()
        optimizer.step()

    return step


def serve(batch: int, size: int) -> None:
    """For each number that comes in take so many steps, and answer with their seconds."""
    step = training_step(batch, size)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            started = time.perf_counter()
            step()
            times.append(time.perf_counter() - started)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))

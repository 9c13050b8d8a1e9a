# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts bench NAME`: what things cost, side by side in one run, as ratios. One file for each benchmark.

Here are only their options: each loads what it needs when it is run, so that the help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Bench"]


class Bench:
    """Benchmarks that print ratios: compare figures of one run, never of two."""

    def busy(
        self,
        rounds: int = 5,
        steps: int = 10,
        spins: Sequence[int] = (1000, 10000, 100000),
        threads: int | None = None,
        batch: int = 8,
        size: int = 96,
    ) -> None:
        """The cost of other programs: a training step alone and beside one busy process per core.

        Each under OpenMP's default policy, under OMP_WAIT_POLICY=PASSIVE, and with a GOMP_SPINCOUNT beside it.

        Args:
            rounds: in each all take their turn, alone and crowded.
            steps: timed in a turn.
            spins: values of GOMP_SPINCOUNT.
            threads: of the training; all cores if not given.
            batch: slices in a mini-batch.
            size: edge of a slice in pixels.
        """
        from scripts.bench.busy import run
        from scripts.common import listed

        run(rounds, steps, listed(spins), threads, batch, size)

    def check(
        self,
        cases: int = 20,
        grid: tuple[int, int, int] = (512, 512, 100),
        repeats: int = 3,
        workers: int | None = None,
    ) -> None:
        """The cost of a data check beside that of reading the same files.

        Args:
            cases: phantoms that are made for it.
            grid: their voxels.
            repeats: rounds; in each all take their turn.
            workers: processes; all cores if not given.
        """
        from scripts.bench.check import run

        run(cases, grid, repeats, workers)

    def label(
        self,
        demo: str = "eval/demo",
        output: str = "eval/bench-label",
        cases: int = 12,
        rounds: int = 3,
        epochs: int = 15,
        test: int = 8,
    ) -> None:
        """What a MONAI Label server learns from one saved organ per case, beside the rule that all else is background.

        Real servers, one after another, in the environment that `make serve` makes.

        Args:
            demo: folder of a demo that has run; its model is where all begin.
            output: folder for everything that is made; servers that are there go on.
            cases: that the scripted annotator saves one organ of.
            rounds: of annotating and training.
            epochs: of a training; one has 20 iterations.
            test: held-out phantoms for the scores.
        """
        from scripts.bench.label import run

        run(demo, output, cases, rounds, epochs, test)

    def inference(
        self,
        slices: int = 200,
        lengths: Sequence[int] = (100, 200, 400, 800, 1000),
        size: int = 512,
        window: int = 96,
        backends: Sequence[str] = ("torch", "openvino"),
        repeats: int = 3,
    ) -> None:
        """The cost of inference: MONAI's usual pipeline and this project's engine on a synthetic CT, same weights.

        Args:
            slices: of the scan that both segment; 0 leaves the comparison out.
            lengths: slices of the scans that show how the engine's cost grows; [] leaves them out.
            size: voxels of a slice's edge.
            window: voxels of a window's edge.
            backends: of the engine; the first shows the growth.
            repeats: rounds of the comparison; in each all take their turn.
        """
        from scripts.bench.inference import run
        from scripts.common import listed

        run(slices, listed(lengths), size, window, listed(backends), repeats)

    def loss(self, repeats: int = 15, kind: str = "ce", size: int = 64) -> None:
        """The cost of the prior: a stage-2 step with and without it, on 4×SIZE³ patches with 14 classes.

        Args:
            repeats: timed steps of each; they take turns.
            kind: ce or dice_ce.
            size: edge of a patch in voxels.
        """
        from scripts.bench.loss import run

        run(repeats, kind, size)

    def slices(
        self,
        cases: int = 2,
        grid: tuple[int, int, int] = (512, 512, 100),
        views: Sequence[str] = ("axial", "coronal", "sagittal"),
        backbones: Sequence[str] = ("tiny", "resnet50"),
        slices: int = 200,
        batch: int = 4,
    ) -> None:
        """The cost of slices: the loader beside reading a volume for each, and beside a step of the network.

        Args:
            cases: phantoms that are made for it.
            grid: their voxels.
            views: axial, coronal, sagittal.
            backbones: of the DeepLab whose training step is timed.
            slices: how many are drawn.
            batch: slices in a mini-batch.
        """
        from scripts.bench.slices import run
        from scripts.common import listed

        run(cases, grid, listed(views), listed(backbones), slices, batch)

    def start(
        self,
        repeats: int = 5,
        full: int = 3,
        partial: int = 2,
        grid: tuple[int, int, int] = (96, 96, 40),
        overlays: str | Sequence[str] = "configs/overlays/demo.yaml",
    ) -> None:
        """The cost of checking values and of the rehearsal: time from the start to the end of the first iteration.

        Args:
            repeats: starts of each; they take turns.
            full: fully labelled phantoms that are made for it.
            partial: phantoms of each partially labelled cohort.
            grid: their voxels.
            overlays: configs on configs/train.yaml.
        """
        from scripts.bench.start import run
        from scripts.common import listed

        run(repeats, full, partial, grid, listed(overlays))

    def views(
        self,
        slices: int = 200,
        size: int = 512,
        scales: Sequence[float] = (0.75, 1, 1.25, 1.5, 1.75, 2),
        width: int = 8,
        backbone: str = "resnet50",
        backbone_slices: int = 8,
        skip_air: bool = False,
    ) -> None:
        """The cost of three views and several scales, averaged: time, memory above the weights, size of the file.

        Args:
            slices: of the scan that narrow 2D U-Nets segment; 0 leaves them out.
            size: voxels of a slice's edge.
            scales: sizes of a slice.
            width: channels of the U-Nets' first level.
            backbone: of a DeepLabV3+ beside them.
            backbone_slices: of the scan that it segments; 0 leaves it out.
            skip_air: leave slices without body out.
        """
        from scripts.bench.views import run
        from scripts.common import listed

        run(slices, size, listed(scales), width, backbone, backbone_slices, skip_air)

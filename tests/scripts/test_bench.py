"""The benchmarks run and print ratios. They are read by people: no test asserts on time."""

import multiprocessing
import re

import pytest
import torch

from scripts.bench import Bench, peak_memory, stage2_step


def test_bench_loss_prints_both_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().loss(repeats=2, size=32)
    printed = capsys.readouterr().out
    assert re.search(r"time, s +\d+\.\d+ +\d+\.\d+ +\d+\.\d+", printed)
    assert re.search(r"peak, GB +\d+\.\d+ +\d+\.\d+ +\d+\.\d+", printed)


def test_bench_inference_compares_labels_and_shows_the_growth(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().inference(slices=40, lengths=(20,), size=64, window=32, backends=("torch",), repeats=1)
    printed = capsys.readouterr().out
    assert re.search(r"usual MONAI pipeline +\d+\.\d +1.00 +\d+\.\d\d +1.00\n", printed)
    assert re.search(r"torch, all windows +\d+\.\d +\d+\.\d\d +\d+\.\d\d +\d\.\d\d +100.0000% +0\n", printed)
    assert re.search(r"torch, body only +\d+\.\d", printed)
    assert re.search(r"\n +20 +\d+\.\d +\d+\.\d\d +\d+\.\d\d", printed)


def test_bench_views_shows_time_memory_and_file(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().views(slices=10, size=32, scales=(1, 2), width=4, backbone="tiny", backbone_slices=4)
    printed = capsys.readouterr().out
    assert "14 classes, untrained weights, air included\nscales 1, 2; " in printed
    costs = r" +\d+\.\d +\d+\.\d\d +"
    assert re.search(rf"U-Net, width 4, 32×32×10, 1 view, 1 scale{costs}0.00\n", printed)
    assert re.search(rf"U-Net, width 4, 32×32×10, 3 views, 2 scales{costs}\d.\d\d\n", printed)
    assert re.search(rf"DeepLabV3\+, tiny, 32×32×4, 3 views, 2 scales{costs}\d.\d\d\n", printed)


def test_both_steps_run_on_any_loss() -> None:
    for kind in ("ce", "dice_ce"):
        for with_prior in (True, False):
            stage2_step(with_prior, kind, 32)()
    assert torch.is_grad_enabled()


def test_peak_memory_is_that_of_the_process_itself() -> None:
    ballast = torch.ones(100_000_000, dtype=torch.uint8)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        child = pool.apply(peak_memory)
    before = peak_memory()
    assert child < before - 50_000_000
    more = torch.ones(200_000_000, dtype=torch.uint8)
    assert peak_memory() > before + 50_000_000
    assert len(ballast) < len(more)

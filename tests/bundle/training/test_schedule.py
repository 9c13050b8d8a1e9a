"""Iterations become epochs of equal length."""

import pytest

from bundle.training.schedule import count_epochs, iterations_per_epoch, scaled_interval, teacher_memory


@pytest.mark.parametrize(
    ("iterations", "longest", "epochs", "length"),
    [(0, 500, 1, 1), (1, 500, 1, 1), (500, 500, 1, 500), (501, 500, 2, 251)],
)
def test_epochs_hold_all_iterations(iterations: int, longest: int, epochs: int, length: int) -> None:
    assert (count_epochs(iterations, longest), iterations_per_epoch(iterations, longest)) == (epochs, length)


def test_an_interval_keeps_its_share() -> None:
    assert scaled_interval(10_000, 100_000, epochs=200, epoch_length=500) == 10_000
    assert scaled_interval(10_000, 100_000, epochs=1, epoch_length=500) == 50
    assert scaled_interval(10_000, 0, epochs=1, epoch_length=1) == 10_000
    assert scaled_interval(1, 100_000, epochs=1, epoch_length=500) == 1


def test_the_teacher_s_memory_is_given_in_refresh_intervals() -> None:
    assert [teacher_memory(share, 57) for share in (0, 0.5, 1.0)] == [0, 28, 57]

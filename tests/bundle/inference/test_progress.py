"""A bar over all iterations, which is out of the way when something goes wrong."""

import logging

import pytest
from ignite.engine import Engine

from bundle.errors import InputError
from bundle.inference.progress import Progress


def fail_at_the_third(engine: Engine, batch: int) -> None:
    if batch == 3:
        raise InputError("ct.nii.gz: broken; look at it")


def test_an_exception_closes_the_bar_and_is_not_shown_twice(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, progress = Engine(fail_at_the_third), Progress("stage 1")
    progress.attach(engine)
    with caplog.at_level(logging.INFO), pytest.raises(InputError, match=r"^ct.nii.gz: broken; look at it$"):
        engine.run([1, 2, 3], max_epochs=2)
    assert "terminating" not in caplog.text
    shown = capsys.readouterr().err
    assert "stage 1" in shown
    assert "2/6" in shown
    assert shown.endswith("\n")
    assert progress.bar is not None
    assert progress.bar.disable  # closed

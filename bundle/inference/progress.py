# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A progress bar for Ignite engines: trainings, evaluations and inference alike."""

from __future__ import annotations

import logging
import os
from typing import Any

from ignite.engine import Engine, Events
from monai.utils import CommonKeys
from tqdm import tqdm

from bundle.errors import let_loaders_end

__all__ = ["Progress"]


def no_last_words(record: logging.LogRecord) -> bool:
    """Keep Ignite from logging an exception, twice, that it raises anyway: whoever shows it shows it once."""
    return "is terminating due to exception" not in record.getMessage()


class Progress:
    """A progress bar over all iterations of a stage, or all cases of an evaluation, with the time left.

    Ignite's ProgressBar counts one epoch at a time, so its time left is that of an epoch.

    Args:
        description: what stands before the bar.
        unit: what an iteration is.
    """

    def __init__(self, description: str, unit: str = "it") -> None:
        self.description, self.unit = description, unit
        self.bar: tqdm | None = None

    def attach(self, engine: Engine) -> None:
        engine.logger.addFilter(no_last_words)
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.advance)
        engine.add_event_handler(Events.COMPLETED | Events.EXCEPTION_RAISED, self.close)

    def start(self, engine: Engine) -> None:
        total = (engine.state.max_epochs or 1) * (engine.state.epoch_length or 0)
        done = engine.state.iteration  # of a training that goes on
        # tqdm's own variable for it: a server's log has a line for each step of a bar
        pause = float(os.environ.get("TQDM_MININTERVAL", 0.5))
        self.bar = tqdm(total=total or None, initial=done, desc=self.description, unit=self.unit, mininterval=pause)

    def advance(self, engine: Engine) -> None:
        assert self.bar is not None
        output = engine.state.output
        if isinstance(output, dict) and CommonKeys.LOSS in output:
            self.bar.set_postfix(loss=f"{float(output[CommonKeys.LOSS].detach()):.3f}", refresh=False)
        self.bar.update()

    def close(self, engine: Engine, *error: Any) -> None:
        if error:
            let_loaders_end()
        if self.bar is not None:
            self.bar.close()
        if error:
            # Ignite leaves an exception to its handlers, and it ends there unless one of them raises it again.
            raise error[0]

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Events of stage 2 beside Ignite's own."""

from __future__ import annotations

from ignite.engine import EventEnum

__all__ = ["PannEvents"]


class PannEvents(EventEnum):
    """Fired in stage 2 beside Ignite's own events."""

    REFRESHED = "refreshed"  # the pseudo-labels are new; state.refresh says what that showed

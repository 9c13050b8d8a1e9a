# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The config that runs: where its ids were set, what values are allowed, and what is wrong with it."""

from bundle.configs.running import (
    RunningConfig,
    build_parts,
    check_values,
    config_record,
    find_mistakes,
    reason_of,
    refuse_mistakes,
)

__all__ = [
    "RunningConfig",
    "build_parts",
    "check_values",
    "config_record",
    "find_mistakes",
    "reason_of",
    "refuse_mistakes",
]

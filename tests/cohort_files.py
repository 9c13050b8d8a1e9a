# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What tests of written cohorts share: the fixture `write_cohort` takes these."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from bundle.organs import Vocabulary

Write = Callable[..., Path]
EMPTY = np.zeros((4, 4, 4))
ALL = {str(value): name for value, name in enumerate(["background", *Vocabulary().names])}

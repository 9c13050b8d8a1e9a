# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The library behind the configs: organs, cohorts, the PaNN method, inference and evaluation."""

from bundle.errors import show_input_errors_plainly

# Configs reach this package through `python -m monai.bundle run`, whose command line is not ours: a bad input shall end
# there too with one sentence and exit code 2.
show_input_errors_plainly()

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A CT or a label map between disk and array. Knows nothing of cohorts or networks, and does not import torch."""

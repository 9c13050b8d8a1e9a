# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A volume through a network: windows, fusion, weights, segmenters."""

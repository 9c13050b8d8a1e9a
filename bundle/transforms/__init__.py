# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI dictionary transforms, and the way between a scan's grid and the network's."""

from bundle.transforms.dictionary import LoadScand, MapLabelValuesd, ReadScand, SaveLabelMapd

__all__ = ["LoadScand", "MapLabelValuesd", "ReadScand", "SaveLabelMapd"]

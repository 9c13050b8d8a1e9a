# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI dictionary transforms, which configs name as `bundle.transforms.*`.

Start with `dictionary`, which has one class for each; `resampling` computes the way between a scan's own grid and the
network's, in both directions.
"""

from bundle.transforms.dictionary import (
    LoadOnNetworkGridd,
    LoadOnOwnGridd,
    MapLabelValuesd,
    SaveLabelMapd,
    WindowIntensityd,
)

__all__ = ["LoadOnNetworkGridd", "LoadOnOwnGridd", "MapLabelValuesd", "SaveLabelMapd", "WindowIntensityd"]

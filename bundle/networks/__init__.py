# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Networks that MONAI does not have; a config names MONAI's own directly."""

from __future__ import annotations

from bundle.networks.deeplab import DeepLabV3Plus

__all__ = ["DeepLabV3Plus"]

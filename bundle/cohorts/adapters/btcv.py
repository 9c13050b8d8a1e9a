# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""BTCV, the abdomen of "Multi-Atlas Labeling Beyond the Cranial Vault": all 13 organs, with the vocabulary's values."""

from __future__ import annotations

from pathlib import Path

from bundle.cohorts.adapters.base import ALL_ORGANS, Adapter, RawCase, pair_files

__all__ = ["Btcv"]


class Btcv(Adapter):
    name = "btcv"
    title = "Multi-Atlas Labeling Beyond the Cranial Vault, Abdomen"
    labels = ALL_ORGANS
    cases = 30
    license = "Synapse's terms for this dataset, see the site"
    url = "https://www.synapse.org/Synapse:syn3193805"
    registration = True
    layout = "RawData/Training/img/img0001.nii.gz and RawData/Training/label/label0001.nii.gz"

    def find(self, source: Path) -> list[RawCase]:
        image = r"img/img(\d{4})\.nii\.gz"
        training = pair_files(source, f"Training/{image}", r"Training/label/label(\d{4})\.nii\.gz", prefix="img")
        return training + pair_files(source, f"Testing/{image}", section="test", prefix="img")

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A CT or a label map between disk and array: find, read, write. Knows nothing of cohorts or networks.

Start with `finding` (scans in folders) and `reading` (a file becomes a `Scan`: voxels and affine); they use `dicom`
and `itk_files`. `grids` compares grids and lays the network's over a scan; `writing`, `volumes` and
`dicom_seg` make results.
"""

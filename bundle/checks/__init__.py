# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Cases are examined before training: files, grids, values, anatomy, copies.

Start with `cases`, which reads each case and asks the others: `rules` (grid, values, sizes) and `anatomy` (sides and
places of organs) about one case, `copies` about all of them; `results` is what is known then, and a file to keep it in.
"""

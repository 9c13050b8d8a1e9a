# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is annotated: cohorts, their cases, what their label values mean, and which cases train, validate and test.

Start with `datalists` (a dataset.json becomes cases), then `labels` (what a value means) and `selection` (folds).
`preparing` makes cohorts from public downloads (`adapters`, with `agreement` and `sides`), `phantoms` synthetic ones.
"""

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is annotated: label values, datalists, selections of cases, public datasets, phantoms. Does not import torch."""

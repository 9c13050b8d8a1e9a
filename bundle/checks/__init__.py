# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Cases are examined before training: files, geometry, values, anatomy, copies. Does not import torch."""

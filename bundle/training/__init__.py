# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The PaNN method: patches, losses, prior, duals, pseudo-labels, and the two stages."""

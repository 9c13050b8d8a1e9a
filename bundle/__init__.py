# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The library behind the configs: organs, cohorts, the PaNN method, inference and evaluation."""

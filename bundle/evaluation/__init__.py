# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scores of cases, statistics over them, comparisons as data."""

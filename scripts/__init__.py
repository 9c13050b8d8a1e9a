# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Command-line tools: `python -m scripts COMMAND`."""

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI Label with this bundle: the app, its archive and its viewer. It has an environment of its own."""

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The MONAI Label app: a server that learns from what annotators really save.

`main.py` and `tasks.py` are what MONAI Label calls, `server.py` is what answers over HTTP, `dicomweb.py` and `segs.py`
talk to an archive. All else knows nothing of MONAI Label: what a saved label map says, what is served, how a training
goes.
"""

# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Everything a person looks at: pages, figures, pictures of slices."""

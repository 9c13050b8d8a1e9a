"""Where things are: the repository, and real scans beside it where a machine has them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
REAL_DATA = ROOT.parent / "shared" / "data"

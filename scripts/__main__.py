# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts COMMAND`: one Fire command per tool."""

from __future__ import annotations

import fire

from scripts.bench import Bench
from scripts.demo import demo
from scripts.phantom import phantom


def main() -> None:
    fire.Fire({"bench": Bench, "demo": demo, "phantom": phantom}, name="python -m scripts")


if __name__ == "__main__":
    main()

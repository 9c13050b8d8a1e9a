"""What runs at every commit is what `make lint`, and so the continuous integration, runs."""

import re

import yaml

from tests.paths import ROOT


def test_the_hooks_are_the_commands_of_make_lint() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = {hook["entry"].replace(" --force-exclude", "") for hook in repository["hooks"]}
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = {line.strip().replace("$(VENV)", ".venv").removesuffix(" .") for line in recipe[1].splitlines()}
    assert hooks == commands
    assert "make test" in (ROOT / ".ci" / "run").read_text()

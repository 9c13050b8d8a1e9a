"""The reference pages: what the generator makes of signatures and configs, and that the committed pages are current."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from bundle.configs.values import VALUES
from scripts import reference
from tests.paths import ROOT


@dataclass(frozen=True)
class StandIn:
    """What an entry of `bundle.configs.values.VALUES` has."""

    name: str
    kind: str = "number"
    allowed: str = "0 to 1"
    about: str = "Something."


def grow(
    *trees: str,
    height: float = 1.5,
    rings: Sequence[int] = (1, 2),
    pruned: bool = True,
    place: str | None = None,
    **others: object,
) -> None:
    """Grow trees.

    They are slow.

    Args:
        trees: which.
        height: in m.
        rings: of each year.
        pruned: cut the twigs.
        place: where; here if not given.
        others: anything else.
    """


class Garden:
    """All about plants."""

    def water(self, liters: int) -> None:
        """Water the plants.

        Args:
            liters: how much.
        """


@pytest.fixture
def config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configs with one value of every sort."""
    (tmp_path / "overlays").mkdir()
    (tmp_path / "train.yaml").write_text(
        "# Train.\n#   python -m monai.bundle run training\nimports:\n- $import torch\n\n"
        "# --- Data ---\ndataset_dir: $@bundle_root + '/data'\nseed: 0  # of all\n"
        "# --- Loss ---\nloss: ce\nweights: [1.0, 2.5]\nnetwork_def:\n  _target_: UNet\nrun: '%training'\n"
    )
    (tmp_path / "evaluate.yaml").write_text("# Score.\ntolerance: 2.0\nvalidate::key_metric: null\n")
    (tmp_path / "inference.yaml").write_text("# Segment.\nseed: 0\nloss: dice_ce\n")
    (tmp_path / "overlays" / "small.yaml").write_text(
        "# Smaller.\nseed: 3\nnetwork_def: {_target_: SegResNet}\nnetwork_def::width: 8\n"
        "augmentation:\n- _target_: RandFlipd\n"
    )
    monkeypatch.setattr(reference, "CONFIGS", tmp_path)
    return tmp_path


# --- The committed pages ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["commands.md", "configs.md", "datasets.md"])
def test_the_committed_page_is_what_the_generator_writes(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert written == reference.reference_pages()[name], "run `python -m scripts reference`"


def test_every_plain_value_of_the_configs_is_described() -> None:
    assert reference.undescribed_values(VALUES) == []


def test_every_description_is_of_a_value_that_there_is() -> None:
    assert reference.unused_descriptions(VALUES) == []
    names = [value.name for value in VALUES]
    assert len(names) == len(set(names))


def test_pages_are_written_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "reference_pages", lambda: {"commands.md": "# Commands\n"})
    reference.reference(str(tmp_path / "pages"))
    assert (tmp_path / "pages" / "commands.md").read_text() == "# Commands\n"


# --- Commands --------------------------------------------------------------------------------------------------------
def test_a_command_has_usage_text_and_a_row_for_each_option() -> None:
    text = reference.command_page({"grow": grow})
    assert "## grow\n\n`python -m scripts grow TREES…`\n\nGrow trees.\n\nThey are slow.\n" in text
    assert "| `TREES…` | text | needed | which. |" in text
    assert "| `--height` | number | `1.5` | in m. |" in text
    assert "| `--rings` | whole numbers | `1,2` | of each year. |" in text
    assert "| `--pruned` | flag | on | cut the twigs. |" in text
    assert "| `--place` | text | – | where; here if not given. |" in text
    assert "| `--ID VALUE` | object | – | anything else. |" in text


def test_public_methods_of_a_class_are_commands_of_their_own() -> None:
    text = reference.command_page({"garden": Garden})
    assert "## garden\n\nAll about plants.\n" in text
    assert "### garden water\n\n`python -m scripts garden water LITERS`" in text


def test_paths_of_this_repository_start_at_its_root() -> None:
    parameter = inspect.Parameter(
        "model", inspect.Parameter.KEYWORD_ONLY, default=str(reference.ROOT / "models" / "model.pt")
    )
    assert reference.default_of(parameter) == "`models/model.pt`"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        ("str", "text"),
        (int, "whole number"),
        ("float | None", "number"),
        ("Sequence[str]", "texts"),
        ("str | Sequence[str] | None", "text, or several"),
        ("str | Sequence[str] | Mapping[str, Any]", "text, or several"),
        ("tuple[int, int, int]", "whole numbers"),
        (inspect.Parameter.empty, "text"),
    ],
)
def test_types_are_said_in_words(annotation: object, words: str) -> None:
    assert reference.type_in_words(annotation) == words


# --- Configs ---------------------------------------------------------------------------------------------------------
def test_values_stand_under_the_headings_of_the_config(config_folder: Path) -> None:
    text = reference.config_page([StandIn("seed", about="Of every draw."), StandIn("loss", "text", "ce | dice_ce")])
    data, loss = text.index("### Data"), text.index("### Loss")
    assert data < text.index("| `seed` | number | 0 to 1 | `0` | Of every draw. |") < loss
    assert loss < text.index("| `loss` | text | ce \\| dice_ce | `ce` | Something. |")
    assert "| `weights` |  |  | `[1.0, 2.5]` |  |" in text


def test_what_is_built_or_evaluated_is_left_out_unless_it_is_described(config_folder: Path) -> None:
    without = reference.config_page([])
    assert not [name for name in ("`imports`", "`run`", "`dataset_dir`") if name in without]
    described = reference.config_page([StandIn("dataset_dir", "path", "a folder", "Where cohorts are.")])
    assert "| `dataset_dir` | path | a folder | `$@bundle_root + '/data'` | Where cohorts are. |" in described


def test_inference_shows_only_what_training_does_not_have(config_folder: Path) -> None:
    _, _, section = reference.config_page([]).partition("## configs/inference.yaml")
    own, _, _ = section.partition("## Overlays")
    assert "| `loss` |  |  | `dice_ce` |  |" in own
    assert "`seed`" not in own


def test_an_overlay_shows_what_it_sets(config_folder: Path) -> None:
    _, _, section = reference.config_page([]).partition("### configs/overlays/small.yaml")
    assert section.startswith("\n\nSmaller.\n")
    rows = ["| `seed` | `3` |", "| `network_def` | `SegResNet` |", "| `network_def::width` | `8` |"]
    assert [row for row in [*rows, "| `augmentation` | `RandFlipd` |"] if row not in section] == []


def test_an_id_that_only_an_overlay_has_is_explained_there(config_folder: Path) -> None:
    (config_folder / "overlays" / "small.yaml").write_text("# Smaller.\n# Section 1: slices\nview: axial\nseed: 3\n")
    text = reference.config_page([StandIn("view", about="Which slices."), StandIn("seed", about="Of every draw.")])
    _, _, section = text.partition("### configs/overlays/small.yaml")
    assert section.startswith("\n\nSmaller.\n\n|")
    assert "| `view` | `axial` | Which slices. |\n| `seed` | `3` |  |" in section


def test_commands_in_the_opening_of_a_config_stand_alone(config_folder: Path) -> None:
    assert reference.opening(config_folder / "train.yaml") == "Train.\n\n`python -m monai.bundle run training`"


def test_values_without_a_description_and_descriptions_without_a_value(config_folder: Path) -> None:
    values = [StandIn("seed"), StandIn("loss"), StandIn("misspelled")]
    assert reference.undescribed_values(values) == ["tolerance", "weights"]
    assert reference.unused_descriptions(values) == ["misspelled"]


@pytest.mark.parametrize("value", [None, True, 0.25, 1.0e-5, "ce", [1, 2], [], ["a b", None]])
def test_a_value_reads_as_in_a_config(value: object) -> None:
    assert yaml.safe_load(reference.in_yaml(value)) == value

"""The configs as other programs read them: MONAI's property checks, the metadata."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from monai.bundle import ConfigWorkflow

from bundle.organs import Vocabulary
from tests.paths import CONFIGS, REAL_DATA, ROOT

SCHEMA = REAL_DATA / "meta_schema_20240725.json"


def workflow(*names: str, kind: str, **values: object) -> ConfigWorkflow:
    files = [str(CONFIGS / f"{name}.yaml") for name in names]
    return ConfigWorkflow(files, workflow_type=kind, logging_file=False, **values)


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("train",), "train"),
        (("train", "evaluate"), "train"),
        (("train", "overlays/demo"), "train"),
        (("inference",), "infer"),
    ],
)
def test_required_ids_are_there_and_refer_to_each_other(
    tiny_cohorts: Path, tmp_path: Path, names: tuple[str, ...], kind: str
) -> None:
    folder = tiny_cohorts / "test" / "imagesTs" if kind == "infer" else tiny_cohorts
    checked = workflow(*names, kind=kind, dataset_dir=str(folder), bundle_root=str(tmp_path), patch_margin=0)
    checked.initialize()
    assert not checked.check_properties()


def test_handlers_stay_a_literal_list_of_dicts() -> None:
    train = yaml.safe_load((CONFIGS / "train.yaml").read_text())
    assert all(isinstance(handler, dict) and "_target_" in handler for handler in train["train"]["handlers"])
    assert train["run"] == "%training"


def test_metadata_names_the_organs_of_the_vocabulary() -> None:
    metadata = json.loads((CONFIGS / "metadata.json").read_text())
    output = metadata["network_data_format"]["outputs"]["pred"]
    assert output["channel_def"] == Vocabulary().channel_def
    assert output["num_channels"] == Vocabulary().out_channels
    assert metadata["version"] in metadata["changelog"]


def test_metadata_versions_are_the_pinned_ones() -> None:
    metadata = json.loads((CONFIGS / "metadata.json").read_text())
    pins = (ROOT / "pyproject.toml").read_text()
    versions = {
        "torch": metadata["pytorch_version"],
        "monai": metadata["monai_version"],
        "numpy": metadata["numpy_version"],
        **metadata["required_packages_version"],
    }
    for package, version in versions.items():
        assert f'"{package}=={version}"' in pins
    assert f'version = "{metadata["version"]}"' in pins


def test_metadata_fits_the_schema() -> None:
    if not SCHEMA.is_file():
        pytest.skip("the metadata schema is not part of the project")
    jsonschema.validate(json.loads((CONFIGS / "metadata.json").read_text()), json.loads(SCHEMA.read_text()))

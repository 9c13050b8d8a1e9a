"""Segmenters: models found, loaded, averaged or refused; organs chosen and cleaned by hand-made examples."""

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from bundle.errors import InputError
from bundle.inference.inferers import ViewInferer
from bundle.inference.segmenters import (
    Segmenter,
    keep_largest_parts,
    keep_organs,
    load_segmenter,
    set_threads,
    weight_files,
)
from bundle.organs import Vocabulary
from tests.model_files import description, save_bare_weights, save_model
from tests.paths import CONFIGS


def loaded(model: str | Path | list[str], **options: Any) -> Segmenter:
    return load_segmenter(model, CONFIGS / "inference.yaml", **options)


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).normal(40, 60, (24, 26, 20)).astype(np.int16)
    nib.save(nib.Nifti1Image(values, np.diag([2.0, 2.5, 3.0, 1.0])), tmp_path / "ct.nii.gz")
    return tmp_path / "ct.nii.gz"


def test_a_model_is_what_its_weights_say(tmp_path: Path, scan: Path) -> None:
    segmenter = loaded(save_model(tmp_path / "m"))
    assert segmenter.vocabulary.names == ["liver", "spleen"]
    assert segmenter.inferer.roi_size == (16, 16, 8)
    labels, affine = segmenter(scan)
    assert labels.shape == (24, 26, 20)
    assert labels.dtype == np.uint8
    assert set(np.unique(labels)) == {0, 1, 2}
    np.testing.assert_array_equal(affine, np.diag([2.0, 2.5, 3.0, 1.0]))


def test_sizes_of_organs_come_with_the_weights_of_the_first_model(tmp_path: Path) -> None:
    sizes = {"liver": {"cases": 2, "ml": 1500.0, "spread": 0.25}}
    one, two = save_model(tmp_path / "one", sizes=sizes), save_model(tmp_path / "two", seed=1)
    assert loaded(one).sizes == sizes
    assert loaded(two).sizes == {}
    assert loaded(f"{one},{two}").sizes == sizes
    assert loaded(f"{two},{one}").sizes == {}


def test_values_reach_the_engine(tmp_path: Path) -> None:
    values = {"backend": "torch", "flips": [0], "scales": [1.0, 1.5], "skip_air": False}
    segmenter = loaded(save_model(tmp_path), memory=3.0, values=values)
    assert segmenter.inferer.asked == {"backend": "torch", "flips": [0], "scales": [1.0, 1.5]}
    assert segmenter.inferer.air is None
    assert segmenter.inferer.memory == 3.0


def test_models_are_averaged(tmp_path: Path, scan: Path) -> None:
    paths = [save_model(tmp_path / name, seed) for seed, name in enumerate("ab")]
    both, one, two = (loaded(model)(scan)[0] for model in (",".join(map(str, paths)), *paths))
    assert (one != two).any()
    assert ((both == one) | (both == two)).mean() > 0.9
    assert (both != one).any()
    assert (both != two).any()
    same, _ = loaded([str(paths[0])] * 2)(scan)
    assert (same != one).mean() < 1e-3  # the mean of equals


def test_models_of_different_views_are_fused(tmp_path: Path, scan: Path) -> None:
    sizes = {"axial": [16, 16, 1], "coronal": [16, 1, 16]}
    paths = [save_model(tmp_path / name, spatial_dims=2, patch_size=size) for name, size in sizes.items()]
    segmenter = loaded([str(path) for path in paths])
    assert isinstance(segmenter.inferer, ViewInferer)
    assert segmenter(scan)[0].shape == (24, 26, 20)


def test_models_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / "a"), save_model(tmp_path / "b", pixdim=[2.0, 2.0, 2.0])]
    with pytest.raises(InputError, match=r"b/model.pt: its pixdim is \[2.0, 2.0, 2.0\].*must have one"):
        loaded([str(path) for path in paths])


def test_missing_and_damaged_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model.pt: no such weights; train first"):
        loaded(str(tmp_path / "model.pt"))
    path = save_model(tmp_path)
    path.with_name("model.json").write_text("{")
    with pytest.raises(InputError, match=r"model.json: expected the description of a model as JSON"):
        loaded(str(path))


# --- Who says what the model is --------------------------------------------------------------------------------------
def test_weights_that_say_nothing_need_a_description_beside_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_bare_weights(tmp_path)
    with pytest.raises(InputError, match=r"model.pt: the weights do not say what they are.*give the --overlays"):
        loaded(path)
    (tmp_path / "model.json").write_text(json.dumps(description()))
    segmenter = loaded(path)
    assert segmenter.vocabulary.names == ["liver", "spleen"]
    assert segmenter.files == (path, tmp_path / "model.json")
    assert "nothing confirms it" in caplog.text


def test_weights_that_say_nothing_are_what_overlays_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, overlay = save_bare_weights(tmp_path), tmp_path / "mine.json"
    overlay.write_text(json.dumps(description()))
    segmenter = loaded(path, overlays=[overlay])
    assert segmenter.vocabulary.names == ["liver", "spleen"]
    assert segmenter.files == (path, overlay)
    assert "nothing confirms what the overlays say" in caplog.text


def test_overlays_choose_windows_but_not_what_the_model_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, overlay = save_model(tmp_path), tmp_path / "mine.yaml"
    network = "network_def::channels: [4, 8]\nnetwork_def::strides: [2]\n"
    overlay.write_text(f"patch_size: [32, 32, 16]\nscales: [1.0, 1.5]\norgans: liver,spleen\n{network}")
    segmenter = loaded(path, overlays=[overlay])
    assert segmenter.inferer.roi_size == (32, 32, 16)
    assert segmenter.inferer.asked["scales"] == [1.0, 1.5]
    for text, said in {
        "organs: [spleen, liver]": r"organs \['liver', 'spleen'\], this config has \['spleen', 'liver'\]",
        "pixdim: [2, 2, 2]": r"pixdim \[3.0, 3.0, 3.0\], this config has \[2, 2, 2\]",
        "network_def::channels: [8, 8]": r"network_def::channels \[4, 8\], this config has \[8, 8\]",
        "patch_size: [16, 1, 16]": r"patch_size \[16, 16, 8\], this config has \[16, 1, 16\]",
    }.items():
        overlay.write_text(text)
        with pytest.raises(InputError, match=rf"model.pt: the model was trained with {said}; leave it out of .*mine"):
            loaded(path, overlays=[overlay])
    assert not caplog.text


def test_an_overlay_that_is_no_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: [")
    with pytest.raises(InputError, match=r"mine.yaml: cannot be read as a config"):
        loaded(save_model(tmp_path), overlays=[tmp_path / "mine.yaml"])


def test_old_weights_are_not_read_with_new_organs(tmp_path: Path) -> None:
    """A second training in a folder once renamed the organs of the first one's weights."""
    path = save_model(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(description(organs=["pancreas", "stomach"])))
    with pytest.raises(InputError) as caught:
        loaded(path)
    for part in (str(path), str(tmp_path / "model.json"), "organs", "['liver', 'spleen']", "['pancreas', 'stomach']"):
        assert part in str(caught.value)


# --- Descriptions from strangers never run ---------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["inside", "beside"])
@pytest.mark.parametrize(
    "attack",
    [
        {"network_def": {"_target_": "os.system", "command": "touch CANARY"}},
        {"network_def": {"_target_": "UNet", "spatial_dims": "$__import__('os').system('touch CANARY')"}},
        {"network_def": {**description()["network_def"], "act": {"_target_": "os.system", "command": "touch CANARY"}}},
        {"network_def": {**description()["network_def"], "_requires_": "$__import__('os').system('touch CANARY')"}},
        {"network_def": "$__import__('os').system('touch CANARY')"},
        {"organs": "$[__import__('os').system('touch CANARY')]"},
        {"pixdim": "$__import__('os').system('touch CANARY')"},
        {"context": {"_target_": "os.system", "command": "touch CANARY"}},
        {"imports": ["$__import__('os').system('touch CANARY')"]},
        {"network": "$__import__('os').system('touch CANARY')"},
        {"network_def::act": "$__import__('os').system('touch CANARY')"},
    ],
)
def test_nothing_in_a_description_is_executed(tmp_path: Path, attack: dict[str, Any], place: str) -> None:
    canary = tmp_path / "canary"
    record = json.loads(json.dumps({**description(), **attack}).replace("CANARY", str(canary)))
    path = save_bare_weights(tmp_path)
    if place == "inside":
        torch.save({"model": torch.load(path), "record": record}, path)
    else:
        (tmp_path / "model.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"model\.(pt|json): "):
        loaded(path)
    assert not canary.exists()


def test_weights_are_found_by_folder_and_in_lists(tmp_path: Path) -> None:
    save_model(tmp_path / "a")
    assert weight_files(str(tmp_path / "a")) == [tmp_path / "a" / "model.pt"]
    assert weight_files("x.pt, y.pt") == [Path("x.pt"), Path("y.pt")]
    assert weight_files(("x.pt", "y.pt")) == [Path("x.pt"), Path("y.pt")]


def test_the_largest_part_of_each_organ_stays() -> None:
    labels = np.zeros((6, 6, 6), np.uint8, order="F")
    labels[0, 0, 0:3] = 1
    labels[4, 4, 0:2] = 1
    labels[1, 1, 0] = 1  # touches the first part at an edge only
    labels[5, 5, 4:6] = 2
    keep_largest_parts(labels)
    assert np.argwhere(labels == 1).tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    assert (labels == 2).sum() == 2


def test_chosen_organs_keep_their_values() -> None:
    labels = np.arange(27, dtype=np.uint8).reshape(3, 3, 3) % 4
    expected = np.where(np.isin(labels, [1, 3]), labels, 0)
    keep_organs(labels, [Vocabulary().channel("spleen"), 3])
    np.testing.assert_array_equal(labels, expected)


def test_threads_are_set_or_refused() -> None:
    before = torch.get_num_threads()
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    set_threads(None)
    assert torch.get_num_threads() == before
    with pytest.raises(InputError, match="expected a number from 1 on, found 0"):
        set_threads(0)

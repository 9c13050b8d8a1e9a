"""Weights: written with what they are, loaded or refused with a sentence."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine
from monai.bundle import ConfigParser, ckpt_export, load
from monai.handlers import CheckpointLoader
from torch import nn

from bundle.errors import InputError
from bundle.inference.records import read_record
from bundle.inference.weights import (
    load_weights,
    read_checkpoint,
    read_model_json,
    write_model_json,
    write_weights,
)
from bundle.organs import Vocabulary
from tests.model_files import ORGANS, description, save_bare_weights, save_model, tiny_network
from tests.paths import CONFIGS

RECORD = read_record(description(), "a test")


# --- Written and read ------------------------------------------------------------------------------------------------
def test_weights_come_back_with_what_they_are(tmp_path: Path) -> None:
    network = tiny_network(RECORD)
    write_weights(tmp_path / "new" / "model.pt", network, RECORD, stage="train", iteration=7)
    checkpoint = read_checkpoint(tmp_path / "new" / "model.pt")
    assert checkpoint.record is not None
    assert checkpoint.record.config() == RECORD.config()
    assert checkpoint.record.training == {"stage": "train", "iteration": 7}
    assert all(torch.equal(value, checkpoint.state[name]) for name, value in network.state_dict().items())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model.pt"]


def test_the_copy_for_people_says_the_same(tmp_path: Path) -> None:
    write_model_json(tmp_path, RECORD)
    assert json.loads((tmp_path / "model.json").read_text()) == description()
    assert read_model_json(tmp_path / "model.pt") == RECORD
    assert read_model_json(tmp_path / "elsewhere" / "model.pt") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_neither_written_nor_loaded(tmp_path: Path, value: float) -> None:
    network = tiny_network(RECORD)
    write_weights(tmp_path / "model.pt", network, RECORD)
    before = (tmp_path / "model.pt").read_bytes()
    name, weight = next(iter(network.named_parameters()))
    with torch.no_grad():
        weight.view(-1)[3] = value
    with pytest.raises(InputError, match=rf"model.pt: the weight {name} is not finite"):
        write_weights(tmp_path / "model.pt", network, RECORD)
    assert (tmp_path / "model.pt").read_bytes() == before
    torch.save(network.state_dict(), tmp_path / "model.pt")
    with pytest.raises(InputError, match=rf"model.pt: the weight {name} is not finite"):
        load_weights(tiny_network(RECORD), tmp_path / "model.pt")


def test_a_description_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected text and numbers, found Tensor"):
        write_weights(tmp_path / "model.pt", tiny_network(RECORD), RECORD, loss=torch.zeros(1))
    assert not list(tmp_path.iterdir())


# --- Files that are no weights ---------------------------------------------------------------------------------------
class Malicious:
    """Unpickling it writes a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.canary, "executed")


def test_a_pickle_with_code_is_refused_and_not_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    torch.save({"model": {"weight": torch.ones(1)}, "record": Malicious(canary)}, tmp_path / "model.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Malicious(canary), protocol=2))
    for name in ("model.pt", "plain.pt"):
        with pytest.raises(
            InputError, match=rf"{name}: holds more than weights, it may be Python objects that execute anything"
        ):
            read_checkpoint(tmp_path / name)
    assert not canary.exists()


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "model.ts"))
    with pytest.raises(InputError, match=r"model.ts: expected weights, found a TorchScript program"):
        read_checkpoint(tmp_path / "model.ts")


def test_folders_and_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = save_model(tmp_path).read_bytes()
    with pytest.raises(InputError, match="expected a file of weights, found a folder"):
        read_checkpoint(tmp_path)
    with pytest.raises(InputError, match=r"gone.pt: no such weights; train first"):
        read_checkpoint(tmp_path / "gone.pt")
    with pytest.raises(InputError, match="cannot be read as weights"):
        read_checkpoint(tmp_path / ("long" * 100))
    path = tmp_path / "bad.pt"
    for content, said in {
        b"": "the file is empty",
        b"no checkpoint": "expected weights that PyTorch wrote, found another kind of file",
        whole[: len(whole) // 2]: "cannot be read as weights, it is damaged or incomplete",
        whole[:100]: "cannot be read as weights, it is damaged or incomplete",
        whole[:-30]: "cannot be read as weights, it is damaged or incomplete",
        b"\x80\x02": "cannot be read as weights, it is damaged or incomplete",
        pickle.dumps({"a": 1}, protocol=5): "holds more than weights",
    }.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=rf"bad.pt: .*({said})") as caught:
            read_checkpoint(path)
        assert "\n" not in str(caught.value)


def test_a_single_wrong_byte_is_noticed(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    content = path.read_bytes()
    name, weight = next(iter(read_checkpoint(path).state.items()))
    place = content.index(weight.numpy().tobytes())
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert not torch.equal(torch.load(path, weights_only=True)["model"][name], weight)  # PyTorch does not
    with pytest.raises(InputError, match=r"model.pt: the file is damaged, its checksums do not fit"):
        read_checkpoint(path)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    path, packed = save_model(tmp_path), tmp_path / "packed.pt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(InputError, match=r"packed.pt: expected weights that PyTorch wrote, found a compressed archive"):
        read_checkpoint(packed)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([torch.ones(1)], "expected a state dict"),
        ({}, "expected a state dict"),
        (torch.ones(3), "expected a state dict"),
        ({"model": 3}, "expected a state dict"),
        ({"weight": 3}, "expected names and tensors, found 'weight': int"),
        ({1: torch.ones(1)}, "expected names and tensors"),
        ({"weight": torch.ones(1).expand(10**12)}, "weight: expected a dense tensor"),
        ({"weight": torch.ones(2, 2).to_sparse()}, "weight: expected a dense tensor"),
        ({"weight": torch.ones(2, dtype=torch.complex64)}, "weight: expected a dense tensor"),
        ({"weight": torch.ones(2, device="meta")}, "weight: expected a dense tensor"),
        ({"model": {"weight": torch.ones(1)}, "record": None}, "expected the description of a model, found None"),
        ({"model": {"weight": torch.ones(1)}, "record": {}}, "does not say the organs"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(InputError, match=rf"model.pt: .*{said}"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "as JSON"),
        (b"\xff\xfe\x00", "as JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b" " * 2_000_000, "more than 1 MB"),
        (b"3", "expected the description of a model, found 3"),
        (b'{"organs": NaN}', "does not say the network_def"),
    ],
)
def test_a_file_beside_weights_that_is_no_description_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"model.json: .*{said}"):
        read_model_json(tmp_path / "model.pt")
    (tmp_path / "model.json").unlink()
    (tmp_path / "model.json").mkdir()
    with pytest.raises(InputError, match=r"model.json: cannot be read \(Is a directory\)"):
        read_model_json(tmp_path / "model.pt")


# --- Loaded into the network of a run --------------------------------------------------------------------------------
def test_weights_without_a_record_load_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = nn.Linear(3, 2)
    for content in (source.state_dict(), {"model": source.state_dict()}):
        torch.save(content, tmp_path / "model.pt")
        target = nn.Linear(3, 2)
        load_weights(target, tmp_path / "model.pt")
        torch.testing.assert_close(target.weight, source.weight)
        assert "model.pt: the weights do not say what they are; they are taken for those of this config" in caplog.text
        caplog.clear()


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "model.pt")
    with pytest.raises(
        InputError, match=r"not the weights of this network.*size mismatch.*give the overlays and values"
    ):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt")


def test_weights_of_other_organs_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_model(tmp_path)
    load_weights(tiny_network(RECORD), path, Vocabulary(ORGANS))
    assert not caplog.text
    with pytest.raises(InputError, match=r"model.pt: the model was trained with organs \['liver', 'spleen'\], this"):
        load_weights(tiny_network(RECORD), path, Vocabulary(ORGANS[::-1]))


def test_a_description_beside_bare_weights_is_believed_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_bare_weights(tmp_path)
    write_model_json(tmp_path, RECORD)
    load_weights(tiny_network(RECORD), path, Vocabulary(ORGANS))
    assert "nothing confirms it" in caplog.text
    with pytest.raises(InputError, match=r"model.json: the model was trained with organs"):
        load_weights(tiny_network(RECORD), path, Vocabulary(ORGANS[::-1]))


@pytest.mark.parametrize(
    ("name", "value"), [("organs", ["pancreas", "stomach"]), ("pixdim", [1.0, 1.0, 1.0]), ("scales", [1.0, 2.0])]
)
def test_a_file_beside_the_weights_that_says_something_else_is_an_error(tmp_path: Path, name: str, value: Any) -> None:
    path = save_model(tmp_path)
    write_model_json(tmp_path, read_record(description(**{name: value}), "a test"))
    with pytest.raises(InputError) as caught:
        load_weights(tiny_network(RECORD), path, Vocabulary(ORGANS))
    for part in (str(path), str(tmp_path / "model.json"), name, str(description()[name]), str(value)):
        assert part in str(caught.value)


CONFIG = {"organs": ORGANS, "pixdim": [3, 3, 3], "patch_size": [16, 16, 8], "network_def::channels": [4, 8],
          "network_def::strides": [2]}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, None),
        ({"patch_size": [32, 32, 32], "scales": [1.0, 2.0]}, None),
        (
            {"pixdim": [2, 2, 2]},
            r'pixdim \[3.0, 3.0, 3.0\], this config has \[2, 2, 2\]; give --pixdim "\[3.0, 3.0, 3.0',
        ),
        ({"hu_window": [-100, 240]}, r"hu_window \[-125, 275\], this config has \[-100, 240\]"),
        ({"intensity": [0, 1]}, r"intensity \[0, 255\], this config has \[0, 1\]"),
        ({"organs": ["spleen", "liver"]}, r"organs \['liver', 'spleen'\], this config has \['spleen', 'liver'\]"),
        ({"network_def::num_res_units": 1}, r"network_def::num_res_units 0, this config has 1"),
        ({"patch_size": [16, 1, 16]}, r"patch_size \[16, 16, 8\], this config has \[16, 1, 16\]"),
    ],
)
def test_the_config_that_runs_must_describe_the_same_model(
    tmp_path: Path, values: dict[str, Any], said: str | None
) -> None:
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / "inference.yaml"))
    parser.update({**CONFIG, **values, "checkpoint": str(save_model(tmp_path)), "device": "cpu"})
    parser["act"] = next(
        act for act in parser["inferring"] if isinstance(act, dict) and "load_weights" in act["_target_"]
    )
    if said is None:
        parser.get_parsed_content("act")
        return
    with pytest.raises(RuntimeError) as caught:
        parser.get_parsed_content("act")
    with pytest.raises(InputError, match=rf"model.pt: the model was trained with {said}"):
        raise caught.value.__cause__ or caught.value


# --- As MONAI reads them ---------------------------------------------------------------------------------------------
def test_monai_loads_the_weights(tmp_path: Path) -> None:
    network, target = tiny_network(RECORD), tiny_network(RECORD, seed=1)
    write_weights(tmp_path / "model.pt", network, RECORD)
    loader = CheckpointLoader(str(tmp_path / "model.pt"), load_dict={"model": target})
    engine = Engine(lambda *_: None)
    loader.attach(engine)
    engine.run([0])
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in network.state_dict().items())


def test_monai_loads_the_weights_of_a_bundle(tmp_path: Path) -> None:
    network, target = tiny_network(RECORD), tiny_network(RECORD, seed=1)
    write_weights(tmp_path / "pann" / "models" / "model.pt", network, RECORD)
    load("pann", model=target, bundle_dir=str(tmp_path), key_in_ckpt="model", device="cpu")
    assert all(torch.equal(value, target.state_dict()[name]) for name, value in network.state_dict().items())


def test_monai_exports_the_weights_with_the_copy_for_people_as_an_overlay(tmp_path: Path) -> None:
    path = save_model(tmp_path)
    write_model_json(tmp_path, RECORD)
    ckpt_export(
        "network_def", str(tmp_path / "model.ts"), str(path), str(CONFIGS / "metadata.json"),
        [str(CONFIGS / "inference.yaml"), str(tmp_path / "model.json")], "model",
    )  # fmt: skip
    image = torch.rand(1, 1, 16, 16, 8)
    exported, network = torch.jit.load(tmp_path / "model.ts").eval(), tiny_network(RECORD).eval()
    torch.testing.assert_close(exported(image), network(image))

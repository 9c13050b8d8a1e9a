"""One run, one folder, one writer; nothing that another run left is read."""

import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from ignite.engine import Engine
from monai.bundle import run as run_config

from bundle.errors import InputError, find_input_error
from bundle.training.checkpoints import StageSaver
from bundle.training.run_folder import CONFIG, LOCK, differences
from tests.paths import ROOT
from tests.runs import run_in

CONFIGS = [str(ROOT / "configs" / "train.yaml"), str(ROOT / "tests" / "integration" / "tiny.yaml")]
SHORT = {"warmup_iterations": 2, "train_iterations": 2, "fold": "$None", "device": "cpu"}


def train(data: Path, root: Path, **values: Any) -> None:
    """A whole training in this process, as the config runs it."""
    run_config("training", config_file=CONFIGS, dataset_dir=str(data), bundle_root=str(root), **{**SHORT, **values})


def refusal(data: Path, root: Path, **values: Any) -> str:
    with pytest.raises((InputError, RuntimeError)) as caught:
        train(data, root, **values)
    error = find_input_error(caught.value)
    assert error is not None, caught.value
    return str(error)


def weights(root: Path, name: str = "model.pt") -> torch.Tensor:
    state = torch.load(root / "models" / name, weights_only=True)["model"]
    return torch.cat([value.flatten().double() for value in state.values()])


def files(root: Path) -> dict[str, bytes]:
    kept = (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != LOCK)
    return {str(path): path.read_bytes() for path in kept if "cache" not in path.parts}


def test_a_second_training_with_other_organs_leaves_weights_and_their_description_alone(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    train(tiny_cohorts, tmp_path, organs=["spleen", "liver"])
    before = files(tmp_path)
    said = refusal(tiny_cohorts, tmp_path, organs=["pancreas", "liver"])
    assert "here is another training, finished" in said
    assert "organs was ['spleen', 'liver'] and is ['pancreas', 'liver']" in said
    assert "--overwrite True" in said
    assert files(tmp_path) == before
    record = torch.load(tmp_path / "models" / "model.pt", weights_only=True)["record"]
    assert record["organs"] == ["spleen", "liver"]


def test_overwriting_begins_by_removing_all_that_the_earlier_run_left(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path, organs=["spleen", "liver"], fold=0)
    (tmp_path / "eval" / "scores.csv").write_text("of an evaluation")
    assert (tmp_path / "models" / "model_best.pt").is_file()
    train(tiny_cohorts, tmp_path, organs=["pancreas", "liver"], overwrite=True)
    assert not (tmp_path / "models" / "model_best.pt").exists()  # nobody would know what its channels were
    for name in ("warmup.pt", "model.pt"):
        record = torch.load(tmp_path / "models" / name, weights_only=True)["record"]
        assert record["organs"] == ["pancreas", "liver"]
    assert (tmp_path / "eval" / "scores.csv").is_file()


@pytest.mark.parametrize("supervision", ["ignore", "marginal"])
def test_pseudo_labels_of_an_earlier_run_are_never_trained_on(
    tiny_cohorts: Path, tmp_path: Path, supervision: str
) -> None:
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    train(tiny_cohorts, fresh, supervision=supervision)
    train(tiny_cohorts, used, supervision="pann", confidence=0.0, pixdim=[16.0, 16.0, 20.0])
    train(tiny_cohorts, used, supervision=supervision, overwrite=True)
    assert torch.equal(weights(used), weights(fresh))


def test_ignore_and_marginal_differ(tiny_cohorts: Path, tmp_path: Path) -> None:
    for supervision in ("ignore", "marginal"):
        train(tiny_cohorts, tmp_path / supervision, supervision=supervision)
    assert not torch.equal(weights(tmp_path / "ignore"), weights(tmp_path / "marginal"))


def test_the_same_command_has_nothing_to_do_once_the_run_is_finished(
    tiny_cohorts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_cohorts, tmp_path)
    before = files(tmp_path)
    train(tiny_cohorts, tmp_path, workers=1)  # which changes no result
    assert "this training is finished" in capsys.readouterr().out
    assert files(tmp_path) == before


def test_a_run_says_what_it_is(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path, supervision="partial", prior_weight=0.25)
    record = json.loads((tmp_path / "eval" / CONFIG).read_text())
    assert record["run"]["finished"]
    assert (record["values"]["supervision"], record["values"]["prior_weight"]) == ("partial", 0.25)
    assert record["versions"]["torch"] == torch.__version__
    assert len(record["code"]) == 16
    assert len(record["cases"]) == 9
    identity = record["run"]["identity"]
    for name in ("warmup.pt", "model.pt"):
        training = torch.load(tmp_path / "models" / name, weights_only=True)["record"]["training"]
        assert training["run"] == identity
        assert training["supervision"] == "partial"
    assert training["cases"] == {"full": 3, "liver": 2, "pancreas": 2, "spleen": 2}
    assert json.loads((tmp_path / "eval" / "prior.json").read_text())["run"] == identity
    assert json.loads((tmp_path / "eval" / "history.jsonl").open().readline())["run"] == identity
    assert [path.name for path in (tmp_path / "eval" / "pseudo_labels").iterdir()] == [identity]


def interrupt(data: Path, root: Path, monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """A training that is interrupted in its second stage, with a checkpoint."""
    from bundle.training.trainer import PannTrainer

    with monkeypatch.context() as patch:
        patch.setattr(PannTrainer, "step_duals", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(data, root, **values)


def test_an_interrupted_run_is_not_continued_with_other_values_other_data_or_another_program(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tiny_cohorts, tmp_path, monkeypatch)
    assert "train_learning_rate was 1e-05 and is 0.5" in refusal(tiny_cohorts, tmp_path, train_learning_rate=0.5)
    assert "augmentation was" in refusal(tiny_cohorts, tmp_path, augmentation=[])
    fewer = refusal(tiny_cohorts, tmp_path, cohorts="full,spleen,liver")
    assert "case pancreas/pancreas_000 is gone" in fewer
    monkeypatch.setattr("bundle.configs.running.code_key", lambda: "another")
    assert "the program has changed since this run was interrupted" in refusal(tiny_cohorts, tmp_path)
    train(tiny_cohorts, tmp_path, resume=True)
    assert (tmp_path / "models" / "model.pt").is_file()


def test_an_interrupted_run_without_a_checkpoint_is_begun_anew_with_any_values(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    run = run_in(tmp_path)
    run.begin([])
    run.make_room()
    train(tiny_cohorts, tmp_path)
    assert (tmp_path / "models" / "model.pt").is_file()


@pytest.mark.parametrize("name", ["models/model.pt", "models/model_best.pt", "eval/history.jsonl"])
def test_what_nobody_knows_the_run_of_is_not_overwritten(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(b"weights of an earlier version, or a history")
    with pytest.raises(InputError, match=f"{name}: was left by an earlier training; choose another --bundle_root"):
        run_in(tmp_path).begin([])
    assert path.read_bytes().startswith(b"weights")
    run = run_in(tmp_path)
    run.begin([], overwrite=True)
    assert path.exists()
    run.make_room()
    assert not path.exists()


def test_a_file_that_is_gone_is_named_by_the_check_of_the_data(tiny_cohorts: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_cohorts, data)
    gone = next((data / "spleen" / "labelsTr").glob("*.nii.gz"))
    gone.unlink()
    said = refusal(data, tmp_path / "run")
    assert f"{gone}: no such" in said


def test_a_run_that_cannot_begin_overwrites_nothing(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path)
    before = files(tmp_path)
    data = tmp_path / "data"
    shutil.copytree(tiny_cohorts, data)
    next((data / "spleen" / "labelsTr").glob("*.nii.gz")).unlink()
    assert "no such" in refusal(data, tmp_path, overwrite=True)
    shutil.rmtree(data)
    assert files(tmp_path) == before


def test_a_file_where_pseudo_labels_go_is_refused_before_anything_is_trained(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "pseudo_labels").write_text("in the way")
    said = refusal(tiny_cohorts, tmp_path)
    assert said.startswith(f"{tmp_path}/eval/pseudo_labels: cannot be used: part of the path is a file")
    assert not list((tmp_path / "models").glob("*.pt"))


def test_weights_of_another_run_in_the_folder_are_not_taken_for_this_one_s(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path / "one")
    train(tiny_cohorts, tmp_path / "two")
    (tmp_path / "two" / "models" / "model.pt").rename(tmp_path / "one" / "models" / "model.pt")
    assert "models/model.pt: is damaged, or was left by another training" in refusal(tiny_cohorts, tmp_path / "one")


HOLDER = """
import sys
from pathlib import Path
from bundle.training.run_folder import TrainingRun
run = TrainingRun(Path(sys.argv[1], "models"), Path(sys.argv[1], "eval"))
run.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("shared", ["models", "eval"])
def test_a_folder_has_one_writer_who_is_named(tmp_path: Path, shared: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    run = run_in(tmp_path)
    if shared == "eval":
        run.models = tmp_path / "others"
    else:
        run.output_dir = tmp_path / "others"
    with pytest.raises(
        InputError, match=rf"{shared}: process {holder.pid} of .* on .*, since .*, is training there; wait"
    ):
        run.begin([])
    holder.kill()
    holder.wait()
    holder.stdout.close()
    run.begin([])  # the lock ends with its process


def test_a_damaged_checkpoint_is_refused(tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(tiny_cohorts, tmp_path, monkeypatch)
    path = tmp_path / "models" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    assert "models/checkpoint.pt: is damaged, or was left by another training" in refusal(tiny_cohorts, tmp_path)


def test_a_checkpoint_with_a_changed_byte_is_refused(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(tiny_cohorts, tmp_path, monkeypatch)
    path = tmp_path / "models" / "checkpoint.pt"
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + 200 + largest.file_size // 2] ^= 0xFF  # torch itself would not notice
    path.write_bytes(content)
    assert "models/checkpoint.pt: is damaged" in refusal(tiny_cohorts, tmp_path)


def test_what_changes_no_result_is_no_difference() -> None:
    one, other = {"workers": 0, "seed": 1}, {"workers": 4, "seed": 2}
    before = {"values": one, "config": one, "cases": {"a/1": "x"}}
    after = {"values": other, "config": other, "cases": {"a/1": "y", "a/2": "z"}}
    assert list(differences(before, after)) == ["seed was 1 and is 2", "case a/1 has changed", "case a/2 is new"]


def test_weights_that_a_run_begins_with_are_not_removed_from_its_folder(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path)
    before, own = files(tmp_path), str(tmp_path / "models" / "warmup.pt")
    said = refusal(tiny_cohorts, tmp_path, warmup_checkpoint=own, overwrite=True)
    assert "models/warmup.pt: warmup_checkpoint is a file of the run that would be removed here" in said
    said = refusal(tiny_cohorts, tmp_path, prior_file=str(tmp_path / "eval" / "prior.json"), overwrite=True)
    assert "eval/prior.json: prior_file is a file of the run that would be removed here" in said
    assert files(tmp_path) == before


def test_a_command_that_overwrites_goes_on_with_its_own_run(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(tiny_cohorts, tmp_path, monkeypatch, overwrite=True)
    train(tiny_cohorts, tmp_path, overwrite=True)  # as a scheduler gives it again
    assert "going on with the training" in capsys.readouterr().out
    train(tiny_cohorts, tmp_path, overwrite=True)  # now it is finished
    assert "going on with the training" not in capsys.readouterr().out


@pytest.mark.parametrize("values", [{}, {"overwrite": True, "seed": 1}])
def test_an_interrupted_run_of_another_command_is_overwritten(
    tiny_cohorts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    values: dict[str, Any],
) -> None:
    interrupt(tiny_cohorts, tmp_path, monkeypatch, **values)
    train(tiny_cohorts, tmp_path, overwrite=True)
    assert "going on with the training" not in capsys.readouterr().out


def test_a_run_goes_on_in_a_folder_that_was_moved(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(tiny_cohorts, tmp_path / "one", monkeypatch)
    (tmp_path / "one").rename(tmp_path / "other")
    train(tiny_cohorts, tmp_path / "other")
    assert "going on with the training" in capsys.readouterr().out


def test_a_finished_run_without_its_weights_is_no_success(tiny_cohorts: Path, tmp_path: Path) -> None:
    train(tiny_cohorts, tmp_path)
    (tmp_path / "models" / "model.pt").unlink()
    assert "models/model.pt: this training is finished, but its weights are gone" in refusal(tiny_cohorts, tmp_path)


@pytest.mark.parametrize("name", ["overwrite", "resume"])
def test_switches_are_named_as_a_command_line_takes_them(name: str) -> None:
    said = (ROOT / "bundle" / "training" / "run_folder.py").read_text()
    said += (ROOT / "docs" / "how-to" / "gpu.md").read_text()
    assert f"--{name} True" in said
    assert f"--{name} true" not in said  # which is text there, and refused


def test_a_signal_in_the_last_iteration_of_a_stage_stops_the_run(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(saver: StageSaver, engine: Engine) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        complete(saver, engine)

    complete = StageSaver.complete
    monkeypatch.setattr(StageSaver, "complete", stop)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_cohorts, tmp_path)
    assert (tmp_path / "models" / "warmup.pt").is_file()
    assert not (tmp_path / "models" / "model.pt").exists()

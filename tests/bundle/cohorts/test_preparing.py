import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundle.cohorts.adapters import ADAPTERS, find_adapter
from bundle.cohorts.adapters.base import ALL_ORGANS, Adapter, RawCase
from bundle.cohorts.preparing import Prepared, choose_evenly, prepare_cohort
from bundle.errors import InputError
from bundle.organs import ORGANS
from tests.bundle.cohorts.adapters import test_btcv, test_kits
from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save
from tests.bundle.cohorts.adapters.miniatures import MINIATURES

NAMES = [
    "btcv", "totalsegmentator", "msd_spleen", "msd_liver", "msd_pancreas", "nih_pancreas", "chaos", "lits", "sliver07",
    "visceral", "amos22", "flare22", "word", "kits",
]  # fmt: skip
EVERY_ORGAN = [organ.name for organ in ORGANS]


def save_btcv(root: Path, count: int) -> Path:
    test_btcv.download(root, count)
    return root


def save_kits(root: Path, count: int) -> Path:
    test_kits.download(root, count)
    return root


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def training(prepared: Prepared, key: str) -> list[object]:
    """One field of the training cases, as the dataset.json has it."""
    return [entry.get(key) for entry in json.loads(prepared.path.read_text())["training"]]


# --- Which cases -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("count", "expected"),
    [(None, range(10)), (10, range(10)), (1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (3, [0, 4, 9])],
)
def test_cases_are_chosen_evenly(count: int | None, expected: Sequence[int]) -> None:
    # 3 of 10 lie at 0, 4.5 and 9
    cases = [RawCase(f"case{number}", Path("image")) for number in range(10)]
    assert choose_evenly(cases, count, "folder") == [cases[place] for place in expected]


@pytest.mark.parametrize("count", [0, 11, -1, True, 2.0])
def test_a_number_of_cases_that_cannot_be_is_refused(count: object) -> None:
    cases = [RawCase(f"case{number}", Path("image")) for number in range(10)]
    with pytest.raises(InputError, match=f"expected 1 to 10, the labelled cases in folder, found {count}"):
        choose_evenly(cases, count, "folder")  # type: ignore[arg-type]


def test_chosen_cases_are_written_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    affine = affine_for("LAS")
    for number in (1, 2, 10, 20, 100):
        for folder in ("imagesTr", "labelsTr"):
            save(tmp_path / folder / f"spleen_{number}.nii.gz", paint({"spleen": 1}, affine), affine)
    prepared = prepare("msd_spleen", tmp_path, tmp_path / "out", cases=3)
    assert training(prepared, "case") == ["spleen_1", "spleen_10", "spleen_100"]


# --- PaNN* -----------------------------------------------------------------------------------------------------------
def test_a_fifth_of_the_cases_keeps_five_organs(tmp_path: Path) -> None:
    source = save_btcv(tmp_path / "in", 15)
    prepared = prepare("btcv", source, tmp_path / "out", dropped=8, fraction=0.2)
    labelled = training(prepared, "labelled")
    kept = [names for names in labelled if names is not None]
    assert len(labelled) == 15
    assert [len(names) for names in kept] == [5, 5, 5]
    assert all(names == [name for name in EVERY_ORGAN if name in names] for names in kept)
    assert len({tuple(names) for names in kept}) == 3  # other organs in each case
    again = prepare("btcv", source, tmp_path / "again", dropped=8, fraction=0.2)
    assert training(again, "labelled") == labelled
    other = prepare("btcv", source, tmp_path / "other", dropped=8, fraction=0.2, seed=1)
    assert training(other, "labelled") != labelled


def test_a_dropped_organ_is_unknown_though_the_file_has_it(tmp_path: Path) -> None:
    prepared = prepare("btcv", save_btcv(tmp_path / "in", 1), tmp_path / "out", dropped=8, fraction=1.0)
    (kept,) = training(prepared, "labelled")
    assert organs_at_points(prepared, "img0001") == {
        point: point if point in kept else "unknown"
        for point in POINTS  # type: ignore[operator]
    }


@pytest.mark.parametrize(("dropped", "fraction"), [(13, 0.2), (0, 0.2), (8, 0.0), (8, 1.1)])
def test_dropping_what_is_not_there_is_refused(dropped: int, fraction: float, tmp_path: Path) -> None:
    source = save_btcv(tmp_path / "in", 1)
    with pytest.raises(InputError, match="drop_labels, fraction: expected 1 to 12 of the 13 organs of btcv"):
        prepare("btcv", source, tmp_path / "out", dropped=dropped, fraction=fraction)


# --- Folds -----------------------------------------------------------------------------------------------------------
class TwoScansEach(Adapter):
    """Two scans of each patient, all organs annotated."""

    name, title, labels, cases = "two", "Two scans each", ALL_ORGANS, 12
    license, url, registration, layout = "none", "none", False, "none"

    def find(self, source: Path) -> list[RawCase]:
        file = source / "RawData/Training/img/img0001.nii.gz"
        return [RawCase(f"case{number}", file, (file,), patient=f"p{number // 2}") for number in range(12)]


def test_folds_are_dealt_by_patient(tmp_path: Path) -> None:
    source = save_btcv(tmp_path / "in", 1)
    prepared = prepare_cohort(TwoScansEach(), source, tmp_path / "out", folds=3, workers=1, progress=False)
    folds, patients = training(prepared, "fold"), training(prepared, "patient")
    assert folds[::2] == folds[1::2]  # scans of one patient stand beside each other
    assert patients[::2] == patients[1::2]
    assert sorted(folds) == [0] * 4 + [1] * 4 + [2] * 4


def test_folds_are_reproducible_and_follow_the_seed(tmp_path: Path) -> None:
    source = save_btcv(tmp_path / "in", 15)
    first, again, other = (
        training(prepare("btcv", source, tmp_path / name, seed=seed), "fold")
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert first == again
    assert first != other
    assert sorted(first) == sorted([0, 1, 2, 3, 4] * 3)  # five by default, of one size


def test_partial_cases_have_no_fold(tmp_path: Path) -> None:
    prepared = prepare("btcv", save_btcv(tmp_path / "in", 15), tmp_path / "out", dropped=8, fraction=0.2)
    for fold, labelled in zip(training(prepared, "fold"), training(prepared, "labelled"), strict=True):
        assert (fold is None) == (labelled is not None)


def test_partial_datasets_have_no_folds(tmp_path: Path) -> None:
    affine = affine_for("LAS")
    for number in range(6):
        for folder in ("imagesTr", "labelsTr"):
            save(tmp_path / folder / f"spleen_{number}.nii.gz", paint({"spleen": 1}, affine), affine)
    prepared = prepare("msd_spleen", tmp_path, tmp_path / "out")
    assert training(prepared, "fold") == [None] * 6


@pytest.mark.parametrize(("count", "expected"), [(1, [None]), (3, [0, 1, 2])])
def test_few_cases_make_fewer_folds(count: int, expected: list[int | None], tmp_path: Path) -> None:
    prepared = prepare("btcv", save_btcv(tmp_path / "in", count), tmp_path / "out")
    assert sorted(training(prepared, "fold"), key=str) == expected


def test_more_folds_than_patients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a number from 2 to the 3 patients there are, found 4"):
        prepare("btcv", save_btcv(tmp_path / "in", 3), tmp_path / "out", folds=4)


# --- What comes in and what goes out ---------------------------------------------------------------------------------
def test_a_broken_case_is_reported_and_the_others_are_kept(tmp_path: Path) -> None:
    source = save_kits(tmp_path / "in", 3)
    broken = source / "dataset/case_00001/imaging.nii.gz"
    broken.write_bytes(broken.read_bytes()[:2000])
    prepared = prepare("kits", source, tmp_path / "out")
    assert training(prepared, "case") == ["case_00000", "case_00002"]
    (failure,) = prepared.failures
    assert str(broken) in failure
    assert "\n" not in failure
    assert json.loads(prepared.path.read_text())["numTraining"] == 2
    assert not (tmp_path / "out/labels/case_00001.nii.gz").exists()


def test_a_download_of_broken_cases_makes_no_cohort(tmp_path: Path) -> None:
    source = save_kits(tmp_path / "in", 1)
    broken = source / "dataset/case_00000/imaging.nii.gz"
    broken.write_bytes(b"no scan")
    with pytest.raises(InputError, match="no training case could be prepared; .*imaging.nii.gz"):
        prepare("kits", source, tmp_path / "out")
    assert not (tmp_path / "out/dataset.json").exists()


def test_the_download_is_left_as_it_is(tmp_path: Path) -> None:
    for name, source in (("kits", save_kits(tmp_path / "kits", 2)), ("btcv", save_btcv(tmp_path / "btcv", 2))):
        before = contents(source)
        prepare(name, source, tmp_path / f"out_{name}")
        assert contents(source) == before


def test_paths_are_relative_and_survive_a_move_of_both_folders(tmp_path: Path) -> None:
    for name, source in (
        ("kits", save_kits(tmp_path / "here/downloads/kits", 1)),
        ("btcv", save_btcv(tmp_path / "here/downloads/btcv", 1)),
    ):
        prepare(name, source, tmp_path / "here/cohorts" / name)
    shutil.move(tmp_path / "here", tmp_path / "there")
    for name, case in (("kits", "case_00000"), ("btcv", "img0001")):
        path = tmp_path / "there/cohorts" / name / "dataset.json"
        (entry,) = json.loads(path.read_text())["training"]
        assert not any(Path(entry[key]).is_absolute() for key in ("image", "label"))
        assert str(tmp_path) not in path.read_text()
        assert organs_at_points(Prepared(path, {}), case)["left kidney"] == "left kidney"


def test_a_relative_source_gives_the_same_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_btcv(tmp_path / "in", 1)
    monkeypatch.chdir(tmp_path)
    prepared = prepare("btcv", Path("in"), Path("out"))
    assert training(prepared, "image") == ["../in/RawData/Training/img/img0001.nii.gz"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_wrong_folder_gives_one_sentence_that_helps(name: str, tmp_path: Path) -> None:
    save(tmp_path / "scans/patient.nii.gz", make_ct(affine_for()), affine_for())
    adapter = find_adapter(name)
    with pytest.raises(InputError) as refusal:
        prepare(name, tmp_path, tmp_path / "out")
    message = str(refusal.value)
    assert message.startswith(f"{tmp_path}: expected the official download of {adapter.title}")
    assert adapter.layout in message
    assert adapter.url in message
    assert "\n" not in message
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such folder; give the folder that the download of"):
        prepare("btcv", tmp_path / "nowhere", tmp_path / "out")


def test_two_downloads_in_one_folder_are_refused(tmp_path: Path) -> None:
    save_btcv(tmp_path / "one", 1)
    save_btcv(tmp_path / "other", 1)
    with pytest.raises(InputError, match="0001.nii.gz: is there twice, also as .*; keep one download"):
        prepare("btcv", tmp_path, tmp_path / "out")


# --- The registry ----------------------------------------------------------------------------------------------------
def test_every_dataset_describes_itself() -> None:
    assert list(ADAPTERS) == list(MINIATURES) == NAMES
    for adapter in ADAPTERS.values():
        assert adapter.labels[0] == "background"
        assert adapter.cases > 0
        assert adapter.url.startswith("http")
        assert all((adapter.title, adapter.license, adapter.layout))


def test_a_misspelt_dataset_is_suggested() -> None:
    with pytest.raises(InputError, match='did you mean "btcv"'):
        find_adapter("btvc")

"""Results are remembered as long as nothing changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from bundle.checks import cases as checks
from bundle.checks.results import CaseCheck
from tests.bundle.checks.planting import change, edit, load, look, path_of


@pytest.mark.parametrize("text", ["[]", "null", "\udcff", "[" * 100_000, '{"a": 1}', '{"a": NaN}'])
def test_a_damaged_memory_is_not_used(data: Path, text: str) -> None:
    memory = data / "memory.json"
    memory.write_text(text, errors="surrogateescape")
    assert look(data, remembered=memory) == look(data)


@pytest.mark.parametrize("name", ["detached.raw", "voxels.raw"])
def test_voxels_beside_their_header_are_watched(data: Path, name: str) -> None:
    itk = pytest.importorskip("itk")
    label = path_of(data, "full/full_000", "label")
    header, raw = label.parent / "detached.mhd", label.parent / name
    itk.imwrite(itk.imread(str(label)), str(header))
    (label.parent / "detached.raw").rename(raw)
    header.write_text(header.read_text().replace("detached.raw", name))
    edit(data, "full", label="labelsTr/detached.mhd")
    memory = data / "memory.json"
    assert not look(data, remembered=memory)["full/full_000"].findings
    raw.write_bytes(bytes(raw.stat().st_size))
    assert [finding.kind for finding in look(data, remembered=memory)["full/full_000"].findings] == ["empty"]


def test_what_was_checked_before_an_interruption_is_remembered(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, done = data / "memory.json", []
    real = checks.examine_case

    def interrupted(case: dict[str, Any], **options: Any) -> CaseCheck:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case["case"])
        return real(case, **options)

    monkeypatch.setattr(checks, "examine_case", interrupted)
    with pytest.raises(KeyboardInterrupt):
        look(data, remembered=memory)
    assert len(json.loads(memory.read_text())) == 2


def test_unchanged_cases_are_not_read_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = data / "memory.json"
    first = look(data, remembered=memory)
    read = []

    def examine(case: dict[str, Any], **options: Any) -> CaseCheck:
        read.append(case["case"])
        return first[f"{case['cohort']}/{case['case']}"]

    monkeypatch.setattr("bundle.checks.cases.examine_case", examine)
    again = look(data, remembered=memory)
    assert not read
    assert again == first
    change(path_of(data, "liver/liver_000", "label"))
    look(data, remembered=memory)
    assert read == ["liver_000"]
    monkeypatch.undo()
    memory.write_text("{")
    assert look(data, remembered=memory) == first


@pytest.mark.parametrize(
    "change",
    [
        {"spacing": ["a"]}, {"volumes": []}, {"hu": None}, {"content": 5}, {"findings": [{}]}, {"case": "another"},
        {"findings": [{"kind": "nonsense", "error": True, "message": "a"}]}, {"cut": "liver"}, {"more": 1},
        {"findings": [{"kind": "copy", "error": "yes", "message": "a"}]}, {"image": "another.nii.gz"},
    ],
)  # fmt: skip
def test_a_damaged_result_is_not_used(data: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    memory, case = data / "memory.json", load(data)[:1]
    (first,) = checks.examine_cases(case, remembered=memory, workers=1, progress=False)
    ((key, entry),) = json.loads(memory.read_text()).items()
    memory.write_text(json.dumps({key: {**entry, **change}}))
    read = []
    monkeypatch.setattr(checks, "examine_case", lambda case, **_: read.append(case["case"]) or first)
    assert checks.examine_cases(case, remembered=memory, workers=1, progress=False) == [first]
    assert read == [first.case]
    assert json.loads(memory.read_text()) == {key: entry}

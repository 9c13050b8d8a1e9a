"""Faults are planted one at a time in clean cohorts, and looked for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.checks.cases import check_cases, examine_cases
from bundle.checks.results import CaseCheck
from bundle.checks.rules import Finding
from bundle.cohorts.datalists import SECTIONS, cohort_files, read_cohort
from bundle.errors import InputError

Change = Callable[[NDArray[Any]], NDArray[Any]]


def load(data: Path) -> list[dict[str, Any]]:
    return [
        case for file in cohort_files([data]) for section in SECTIONS for case in read_cohort(file, section=section)
    ]


def look(data: Path, **options: Any) -> dict[str, CaseCheck]:
    return {check.name: check for check in examine_cases(load(data), progress=False, workers=1, **options)}


def found(data: Path) -> dict[str, list[Finding]]:
    return {name: check.findings for name, check in look(data).items() if check.findings}


def only(data: Path, name: str) -> Finding:
    """The one finding there is, about the case of this name."""
    findings = found(data)
    assert list(findings) == [name], findings
    (finding,) = findings[name]
    return finding


def path_of(data: Path, name: str, key: str = "image") -> Path:
    (case,) = [case for case in load(data) if f"{case['cohort']}/{case['case']}" == name]
    return Path(case[key])


def change(path: Path, voxels: Change = lambda old: old, affine: Change = lambda old: old) -> None:
    image = nib.load(path)
    made = nib.Nifti1Image(voxels(np.asanyarray(image.dataobj)), affine(image.affine.copy()))
    nib.save(made, path)


def edit(data: Path, cohort: str, **fields: Any) -> None:
    """Set fields of the first training case."""
    path = data / cohort / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["training"][0].update(fields)
    path.write_text(json.dumps(datalist))


def mirror(affine: NDArray[Any]) -> NDArray[Any]:
    return np.diag([-1.0, 1, 1, 1]) @ affine


def refused(data: Path, name: str, *words: str) -> None:
    finding = only(data, name)
    assert finding.error
    for word in words:
        assert word in finding.message
    with pytest.raises(InputError, match=r"^[^\n]*$"):
        check_cases(load(data), progress=False)

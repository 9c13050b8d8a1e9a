# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts prior DATASET…`: q of your cohorts, and where it is doubtful, before any training.

What takes seconds to import is imported when the command runs, so that its help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import InputError
from bundle.organs import Vocabulary
from scripts.common import check_writable, listed
from scripts.configs import TRAIN, config_values

if TYPE_CHECKING:
    from bundle.cohorts.datalists import Case
    from bundle.training.measuring import Footing
    from bundle.training.survey import Survey


def prior(
    *datasets: str,
    organs: str | Sequence[str] | None = None,
    overlays: str | Sequence[str] = (),
    output: str = "eval/prior",
) -> None:
    """Show the organ proportions of cohorts: q of the full cases, and what each partial cohort shows beside it.

    The numbers are those that training would use for the same configs and cases; with a fold it holds cases out, and
    with an empty_rate below 1 it weights slices by what they show.

    Args:
        datasets: dataset.json files, cohort folders, or a folder of cohorts; their "training" sections are read.
        organs: the vocabulary, for instance liver,spleen; that of the configs if not given.
        overlays: config files on configs/train.yaml.
        output: folder for prior.json, cohorts.json, prior.png and prior.html.
    """
    from bundle.reports.prior import write_prior_page
    from bundle.training.survey import survey_cohorts

    folder = Path(str(output))
    check_writable(folder)
    footing, configured = read_footing([str(overlay) for overlay in listed(overlays)])
    vocabulary = Vocabulary(configured if organs is None else organs)
    survey = survey_cohorts(read_cases([str(dataset) for dataset in datasets], vocabulary), vocabulary, footing)
    survey.save(folder)
    write_prior_page(folder, survey, vocabulary)
    print_survey(survey, folder)


def read_footing(overlays: Sequence[str]) -> tuple[Footing, Any]:
    """How training sees scans, and its vocabulary."""
    from bundle.training.measuring import Footing
    from bundle.training.patches import Patches

    names = ("patch_size", "patch_margin", "pixdim", "organs", "empty_rate")
    size, margin, pixdim, organs, empty_rate = config_values(names, [TRAIN, *overlays]).values()
    if empty_rate != 1:
        print(f"note: q is shown over all slices; training with empty_rate {empty_rate} weights them by what they show")
    for name, numbers in (("patch_size", size), ("pixdim", pixdim)):
        if not isinstance(numbers, list | tuple) or len(numbers) != 3:
            config = " + ".join([TRAIN.name, *overlays])
            raise InputError(f"{config}: {name}: expected three numbers, found {numbers}")
    return Footing(Patches(size, margin), tuple(float(step) for step in pixdim)), organs


def read_cases(datasets: Sequence[str], vocabulary: Vocabulary) -> list[Case]:
    """The cases to train on."""
    from bundle.cohorts.datalists import cohort_files, load_cases

    cases = load_cases(".", [str(file) for file in cohort_files(datasets)], vocabulary)
    if not cases:
        raise InputError(f'{", ".join(datasets)}: no case in the section "training"; give cohorts to train on')
    return cases


def print_survey(survey: Survey, folder: Path) -> None:
    """Tables, doubts, and where the files are."""
    from bundle.reports.prior import share_table, view_table

    for table in (share_table(survey), view_table(survey)):
        print(table.text())
        print()
    for sentence in survey.warnings:
        print(f"warning: {sentence}")
    print(f"q is in {folder / 'prior.json'}, the report is {folder / 'prior.html'}")

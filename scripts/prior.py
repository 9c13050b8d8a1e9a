# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts prior DATASET…`: q of your cohorts, and where it is doubtful, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import InputError
from bundle.files import whole_file
from bundle.organs import Vocabulary
from scripts.common import check_writable, listed, print_table
from scripts.configs import TRAIN, config_values

if TYPE_CHECKING:  # else imported where they are used: the help needs none of these
    from bundle.cohorts.datalists import Case
    from bundle.training.measuring import Footing
    from bundle.training.survey import Cohort, Survey

Rows = list[list[str]]


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
    from bundle.training.survey import survey_cohorts

    folder = Path(str(output))
    check_writable(folder)
    footing, configured = read_footing([str(overlay) for overlay in listed(overlays)])
    vocabulary = Vocabulary(configured if organs is None else organs)
    survey = survey_cohorts(read_cases([str(dataset) for dataset in datasets], vocabulary), vocabulary, footing)
    survey.save(folder)
    write_page(survey, vocabulary, folder)
    print_survey(survey, folder)


def read_footing(overlays: Sequence[str]) -> tuple[Footing, Any]:
    """How training looks at scans, and its vocabulary."""
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
    from bundle.cohorts.datalists import cohort_files, load_cases

    cases = load_cases(".", [str(file) for file in cohort_files(datasets)], vocabulary)
    if not cases:
        raise InputError(f'{", ".join(datasets)}: no case in the section "training"; give cohorts to train on')
    return cases


# --- What is shown ---------------------------------------------------------------------------------------------------
def per_mille(share: float) -> str:
    return f"{1000 * share:.3f}"


def share_rows(survey: Survey) -> tuple[list[str], Rows]:
    """Organ, q and spread, then a column for each partial cohort; the background comes last."""
    head = ["organ", "q ‰", "spread", *(f"{cohort.name} ({cohort.cases})" for cohort in survey.partial)]
    q = list(zip(survey.prior.names, survey.prior.proportions, survey.prior.spread, strict=True))
    rows = [
        [name, per_mille(share), per_mille(spread), *(given_cell(cohort, name) for cohort in survey.partial)]
        for name, share, spread in [*q[1:], q[0]]
    ]
    return head, rows


def given_cell(cohort: Cohort, organ: str) -> str:
    given = cohort.given.get(organ)
    if given is None:
        return "–"
    times = "" if given.ratio is None else f"  ×{given.ratio:.2f}"
    return f"{per_mille(given.mean)} ± {per_mille(given.spread)}{times}"


def view_rows(survey: Survey) -> tuple[list[str], Rows]:
    head = ["field of view", "cases", "right-left mm", "back-front mm", "foot-head mm", "litres"]
    rows = [
        [cohort.name, str(cohort.cases), *(f"{side:.0f}" for side in cohort.extent_mm), f"{cohort.volume_l:.1f}"]
        for cohort in [*survey.partial, survey.full]
    ]
    return head, rows


def print_survey(survey: Survey, folder: Path) -> None:
    for head, rows in (share_rows(survey), view_rows(survey)):
        print_table([head, *rows], numbers=True)
        print()
    for sentence in survey.warnings:
        print(f"warning: {sentence}")
    print(f"q is in {folder / 'prior.json'}, the report is {folder / 'prior.html'}")


def write_page(survey: Survey, vocabulary: Vocabulary, folder: Path) -> None:
    """`prior.html`, and its figure as `prior.png`."""
    from bundle.reports.pages import Page
    from bundle.reports.prior import plot_prior

    figure = plot_prior(survey.prior, {cohort.name: cohort.given for cohort in survey.partial}, vocabulary)
    with whole_file(folder / "prior.png") as unfinished:
        figure.savefig(unfinished, dpi=110)
    patch = "×".join(str(size) for size in survey.prior.sampling["patch"])
    page = Page("Organ proportions")
    page.text(
        f"q of {survey.full.cases} fully labelled cases, as uniformly drawn patches of {patch} voxels see them, in ‰ "
        "of the voxels; spread is the standard deviation over the cases. A cohort's column has the proportions its "
        "annotators marked, and × how they compare with q; – is not annotated.",
        "note",
    )
    if survey.warnings:
        page.heading("Where q is doubtful")
        for sentence in survey.warnings:
            page.text(sentence)
    page.heading("Proportions")
    page.figure(figure, "Bars: one standard deviation over the cases. An arrow goes on to 0.")
    page.table(*share_rows(survey))
    page.heading("Fields of view")
    page.text("Medians over the cases.", "note")
    page.table(*view_rows(survey))
    page.save(folder / "prior.html")

"""`python -m scripts prior`: what it prints, writes and refuses."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.image import imread

from bundle.errors import InputError
from bundle.training.prior import Prior
from scripts.prior import prior
from tests.paths import ROOT

TINY = str(ROOT / "tests" / "integration" / "tiny.yaml")
Run = Callable[..., subprocess.CompletedProcess[str]]


def test_q_is_shown_beside_what_each_cohort_gives(
    tiny_cohorts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior(str(tiny_cohorts), overlays=TINY, output=str(tmp_path))
    printed = capsys.readouterr().out
    q, record = Prior.load(tmp_path / "prior.json"), json.loads((tmp_path / "cohorts.json").read_text())
    assert q.sampling["patch"] == [16, 16, 8]
    head, *lines = printed.splitlines()
    assert re.split(r"\s{2,}", head) == ["organ", "q ‰", "spread", "liver (2)", "pancreas (2)", "spleen (2)"]
    shares, views, *_ = ({line.split("  ")[0]: re.split(r"\s{2,}", line) for line in table.splitlines()[1:]}
                         for table in printed.split("\n\n"))  # fmt: skip
    share = q.proportions[6]
    (given,) = [cohort["given"]["liver"] for cohort in record["partial"] if cohort["name"] == "liver"]
    assert shares["liver"] == [
        "liver", f"{1000 * share:.3f}", f"{1000 * q.spread[6]:.3f}",
        f"{1000 * given['mean']:.3f} ± {1000 * given['spread']:.3f}", f"×{given['mean'] / share:.2f}", "–", "–",
    ]  # fmt: skip
    assert shares["aorta"][3:] == ["–", "–", "–"]
    assert views["full cases"][1:] == ["3", *(f"{side:.0f}" for side in record["full"]["extent_mm"]),
                                      f"{record['full']['volume_l']:.1f}"]  # fmt: skip
    assert record["full"]["extent_mm"][2] == pytest.approx(240)
    assert [line[9:] for line in lines if line.startswith("warning: ")] == record["warnings"]
    assert any("aorta (3)" in sentence for sentence in record["warnings"])
    assert lines[-1] == f"q is in {tmp_path / 'prior.json'}, the report is {tmp_path / 'prior.html'}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cohorts.json", "prior.html", "prior.json", "prior.png"]
    assert imread(tmp_path / "prior.png").shape[0] > 400
    html = (tmp_path / "prior.html").read_text()
    assert all(sentence.split(":")[0] in html for sentence in record["warnings"])
    assert not re.findall(r'(?:src|href)="(?!data:)', html)


def test_cohorts_are_files_folders_or_a_folder_of_them(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, liver = tiny_cohorts / "full", tiny_cohorts / "liver"
    found = []
    for name, datasets in {
        "files": [full / "dataset.json", liver / "dataset.json"],
        "folders": [full, liver],
        "twice": [full, liver, full / "dataset.json"],
    }.items():
        prior(*map(str, datasets), organs=["liver", "spleen"], overlays=[TINY], output=str(tmp_path / name))
        found.append(json.loads((tmp_path / name / "cohorts.json").read_text()))
    monkeypatch.chdir(full)
    prior("dataset.json", str(liver), organs=["liver", "spleen"], overlays=[TINY], output=str(tmp_path / "here"))
    found.append(json.loads((tmp_path / "here" / "cohorts.json").read_text()))
    assert found[0] == found[1] == found[2] == found[3]
    assert found[3]["cases"][0]["cohort"] == "full"
    assert [cohort["name"] for cohort in found[0]["partial"]] == ["liver"]
    assert Prior.load(tmp_path / "files" / "prior.json").names == ["background", "liver", "spleen"]


def test_overlays_give_the_vocabulary_and_the_footing(tiny_cohorts: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "mine.yaml"
    overlay.write_text("organs: [liver]\npatch_size: $[@edge] * 3\nedge: 8\npatch_margin: 2\npixdim: [12, 12, 15]\n")
    prior(str(tiny_cohorts), overlays=str(overlay), output=str(tmp_path / "out"))
    q = Prior.load(tmp_path / "out" / "prior.json")
    assert q.names == ["background", "liver"]
    assert (q.sampling["patch"], q.sampling["margin"], q.sampling["cases"]) == ([8, 8, 8], [2, 2, 2], 5)


def refusal(*datasets: object, **options: object) -> str:
    with pytest.raises(InputError) as raised:
        prior(*map(str, datasets), **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_cannot_be_used_is_refused(tiny_cohorts: Path, tmp_path: Path) -> None:
    out = {"output": str(tmp_path / "out")}
    assert "expected at least one dataset.json" in refusal(**out)
    assert f"{tmp_path}: no dataset.json found" in refusal(tmp_path, **out)
    image = tiny_cohorts / "full" / "imagesTr" / "full_000.nii.gz"
    assert "full_000.nii.gz: expected a dataset.json or a folder of cohorts" in refusal(image, **out)
    assert "nowhere.yaml: no such config" in refusal(tiny_cohorts, overlays="nowhere.yaml", **out)
    assert 'the section "training"' in refusal(tiny_cohorts / "test", **out)
    assert "--organs \"['spleen']\"" in refusal(tiny_cohorts / "spleen", **out)
    assert '"nose" is not in the vocabulary' in refusal(tiny_cohorts, organs="nose", **out)
    (tmp_path / "bad.yaml").write_text("pixdim: [1\nx: ]")
    assert "bad.yaml: cannot be read as a config" in refusal(tiny_cohorts, overlays=str(tmp_path / "bad.yaml"), **out)
    (tmp_path / "flat.yaml").write_text("pixdim: 2.0\n")
    assert "pixdim: expected three numbers, found 2.0" in refusal(
        tiny_cohorts, overlays=str(tmp_path / "flat.yaml"), **out
    )
    assert "cannot be written to" in refusal(tiny_cohorts, output=str(tmp_path / "bad.yaml"))
    assert not (tmp_path / "out").exists()


def test_the_command_as_a_user_types_it(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    done = run_command("-m", "scripts", "prior", tiny_cohorts, "--overlays", TINY, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "warning: " in done.stdout  # and yet the exit code is 0
    refused = run_command("-m", "scripts", "prior", tiny_cohorts / "liver", "--output", tmp_path / "none")
    assert refused.returncode == 2
    (sentence,) = [line for line in refused.stderr.splitlines() if line]
    assert sentence.startswith("error: no case has all organs of the vocabulary annotated")
    assert not (tmp_path / "none").exists()

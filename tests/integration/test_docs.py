"""Every command of the documentation is run, in order, in a copy of the repository, with smaller numbers appended."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.cohorts.adapters import ADAPTERS
from scripts.prepare import row_of
from tests.bundle.cohorts.adapters.miniatures import MINIATURES
from tests.paths import ROOT

PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*.md")))]
NETWORK = "--network_def::channels [4,8] --network_def::strides [2]"
SMALLER = {  # how a command begins, and what makes it quick
    "python -m scripts phantom": "--full 2 --partial 1 --test 1 --grid 32,32,16",
    "python -m monai.bundle run training": f"--warmup_iterations 2 --train_iterations 2 {NETWORK}",
    "python -m monai.bundle run training --config_file \"['configs/train.yaml','configs/deeplab": (
        "--warmup_iterations 2 --train_iterations 2 --network_def::backbone tiny --slice_size [32,32] "
        "--pixdim [12,12,15] --scales [1.0] --train_scales [1.0] --window_batch 16"
    ),
    "python -m monai.bundle run evaluating": NETWORK,
    "python -m monai.bundle run --config_file": "",  # models/model.json tells what the model is
    "python -m scripts compare": "",
    "python -m scripts crossval": (
        '--values "warmup_iterations=2,train_iterations=2,network_def::channels=[4,8],network_def::strides=[2]"'
    ),
    "python -m scripts prepare": "--workers 1",
    "python -m scripts check": "--workers 1",
    "python -m scripts prior": "",
    "python -m scripts segment": "",
    "python -m scripts bench loss": "--repeats 1 --size 32",
    "python -m scripts bench slices": "--cases 1 --grid 32,32,16 --backbones tiny --slices 5",
    "python -m scripts bench views": "--slices 8 --size 32 --backbone tiny --scales [1,2]",
    "python -m scripts bench inference": "--slices 20 --lengths [10] --size 64 --window 32 --repeats 1",
}


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def make_clone(folder: Path) -> Path:
    for name in ("bundle", "configs", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture
def clone(shared: Path, page: str, tmp_path: Path) -> Path:
    """What all pages work in; a clone with downloads, of its own, for a page of public datasets.

    Their miniatures are not to be trained on by the next page.
    """
    if not any("downloads/" in command for command in commands(page)):
        return shared
    for name, download in MINIATURES.items():
        download(tmp_path / "downloads" / name)
    return make_clone(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_work(clone: Path, page: str) -> None:
    for command in commands(page):
        extra = SMALLER[max((start for start in SMALLER if command.startswith(start)), key=len)]  # the closest
        words = [sys.executable, *shlex.split(command)[1:], *shlex.split(extra)]
        finished = subprocess.run(words, cwd=clone, capture_output=True, text=True, timeout=1500)
        assert finished.returncode == 0, f"{command}\n{finished.stderr[-3000:]}"


def test_no_command_hides_outside_a_block_that_is_run() -> None:
    assert len(commands("README.md")) == 4
    for page in PAGES:
        fences = re.findall(r"```(\w*)\n", (ROOT / page).read_text())
        assert set(fences) <= {"bash", "json", ""}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_make_targets_of_the_readme_exist() -> None:
    targets = re.findall(r"^    make (\S+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets == ["demo", "test"]
    assert all(f"\n{target}:" in makefile for target in targets)


# --- The page of datasets --------------------------------------------------------------------------------------------
DATASETS = "docs/datasets.md"


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_the_table_of_datasets_is_in_step() -> None:
    rows = re.findall(r"^\| \[.*\|$", (ROOT / DATASETS).read_text(), re.MULTILINE)
    expected = []
    for adapter in ADAPTERS.values():
        _, organs, cases, registration, licence, url = row_of(adapter)
        seen = "seen on real data" if adapter.seen else "built from its description"
        expected.append(f"| [{adapter.title}]({url}) | {organs} | {cases} | {licence} | {registration} | {seen} |")
    assert rows == expected


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_dataset_has_its_command_and_what_it_puts_right(name: str) -> None:
    adapter, command = ADAPTERS[name], f"python -m scripts prepare {name} downloads/{name} --output data/{name}"
    assert command in commands(DATASETS)
    _, _, section = (ROOT / DATASETS).read_text().partition(f"\n**{adapter.title}**")
    files, said, fixes = section.split("```")[:3]
    assert adapter.layout in words_of(files)
    assert command in said
    assert words_of(fixes).startswith(words_of(adapter.fixes))

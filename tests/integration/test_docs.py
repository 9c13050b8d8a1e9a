"""The documentation is true: every command in it is run, in a copy of the repository, with smaller numbers appended.

What cannot be run in minutes is read: names of commands, options, files, rooms and headings must exist.
"""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from bundle.cohorts.adapters import ADAPTERS
from scripts.__main__ import COMMANDS
from scripts.prepare import row_of
from tests.bundle.cohorts.adapters.miniatures import MINIATURES
from tests.bundle.test_rooms import ROOMS
from tests.paths import ROOT

README = "README.md"
DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAGES = [README, *DOCS]  # whose commands are run
SERVED = ("curl ", "while curl ", "python -m label.viewer ")  # run by tests/label/server/test_docs.py, beside a server
TEXTS = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"]
GENERATED = {*(f"docs/reference/{name}.md" for name in ("commands", "configs", "datasets")), "docs/errors.md"}
FEW = "--warmup_iterations 2 --train_iterations 2"
NETWORK = "--network_def::channels [4,8] --network_def::strides [2]"
SMALLER = {  # how a command begins, and what makes it quick
    "python -c": "",
    "python -m monai.bundle ckpt_export": "",
    "python -m monai.bundle run training": f"{FEW} {NETWORK}",
    "python -m monai.bundle run training --config_file configs/train.yaml": (
        f"{FEW} {NETWORK} --pixdim [6,6,6] --patch_size [32,32,32] --patch_margin 0"
    ),
    "python -m monai.bundle run training --config_file \"['configs/train.yaml','configs/overlays/paper_2d": (
        f"{FEW} --network_def::backbone tiny --slice_size [32,32] "
        "--pixdim [12,12,15] --scales [1.0] --train_scales [1.0] --window_batch 16"
    ),
    "python -m monai.bundle run evaluating": NETWORK,
    "python -m monai.bundle run --config_file": "",  # models/model.json says what the model is
    "python -m scripts bench busy": "--rounds 1 --steps 1 --spins [1000] --batch 1 --size 32",
    "python -m scripts bench inference": "--slices 20 --lengths [10] --size 64 --window 32 --repeats 1",
    "python -m scripts bench loss": "--repeats 1 --size 32",
    "python -m scripts bench slices": "--cases 1 --grid 32,32,16 --backbones tiny --slices 5",
    "python -m scripts bench views": "--slices 8 --size 32 --backbone tiny --scales [1,2]",
    "python -m scripts check": "--workers 1",
    "python -m scripts compare": "",
    "python -m scripts crossval": (
        '--values "warmup_iterations=2,train_iterations=2,network_def::channels=[4,8],network_def::strides=[2]"'
    ),
    "python -m scripts folds": "",
    "python -m scripts phantom": "--full 2 --partial 1 --test 1 --grid 32,32,16",
    "python -m scripts prepare": "--workers 1",
    "python -m scripts prior": "",
    "python -m scripts segment": "",
}
BRITISH = ("behaviour", "centre", "colour", "favour", "labelled", "licence", "litre", "millimetre", "neighbour")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", read(page), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith(SERVED)]


def prose(page: str) -> str:
    """A page without its blocks of code; lines that are indented are left in."""
    return re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)


# --- Commands that are run -------------------------------------------------------------------------------------------
def make_clone(folder: Path) -> Path:
    for name in ("bundle", "configs", "label", "scripts"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def run_commands(page: str, folder: Path) -> None:
    for command in commands(page):
        extra = SMALLER[max((start for start in SMALLER if command.startswith(start)), key=len)]  # the closest
        words = [sys.executable, *shlex.split(command)[1:], *shlex.split(extra)]
        environment = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000", **os.environ}
        finished = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500)
        assert finished.returncode == 0, f"{command}\n{finished.stdout[-1000:]}\n{finished.stderr[-3000:]}"


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which the commands of the README have been run: there are cohorts, a model and scores."""
    clone = make_clone(tmp_path_factory.mktemp("clone"))
    run_commands(README, clone)
    return clone


@pytest.mark.slow
def test_commands_of_the_readme_work(after_readme: Path) -> None:
    left = ["models/model.pt", "models/model.json", "eval/config.json", "eval/scores.csv", "segmentations/organs.ctbl"]
    assert [name for name in left if not (after_readme / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in DOCS if commands(page)])
def test_commands_of_a_page_work(after_readme: Path, page: str, tmp_path: Path) -> None:
    """Each page is read after the README; pages of public datasets find downloads, and cohorts of these alone."""
    clone = tmp_path / "clone"
    if any("downloads/" in command for command in commands(page)):
        make_clone(clone)
        for name, download in MINIATURES.items():
            download(clone / "downloads" / name)
    else:
        shutil.copytree(after_readme, clone)
    run_commands(page, clone)


def test_no_command_hides_outside_a_block_that_is_run() -> None:
    assert len(commands(README)) == 4
    for page in PAGES:
        assert set(re.findall(r"```(\w*)\n", read(page))) <= {"bash", "json", ""}
        assert not re.findall(r"^ {4,}python .*", prose(page), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_has_a_quick_form(page: str) -> None:
    assert [line for line in commands(page) if not line.startswith(tuple(SMALLER))] == []


# --- Names that must exist -------------------------------------------------------------------------------------------
def check_command_line(line: str) -> None:
    """A `python -m scripts` line names a command, and options that it has."""
    words = line.split()[3:]
    assert words[0] in COMMANDS, line
    module, attribute = COMMANDS[words[0]][:2]
    command = getattr(import_module(module), attribute)
    if inspect.isclass(command):
        command = getattr(command, words[1])
    known = set(inspect.signature(command).parameters)
    options = [word[2:].split("=")[0] for word in words if word.startswith("--")]
    assert [name for name in options if not {name, name.removeprefix("no")} & (known | {"help"})] == [], line


@pytest.mark.parametrize("page", TEXTS)
def test_commands_in_sentences_have_the_options_that_are_named(page: str) -> None:
    for line in [*re.findall(r"`(python -m scripts [a-z][^`]*)`", prose(page)), *commands(page)]:
        if line.startswith("python -m scripts"):
            check_command_line(line)


@pytest.mark.parametrize("page", TEXTS)
def test_configs_and_modules_that_are_named_exist(page: str) -> None:
    named = re.findall(r"\bconfigs/[\w/]+\.(?:yaml|json)", read(page))
    named += re.findall(r"`((?:[\w-]+/)+\w+\.py)`", read(page))
    assert [name for name in named if not (ROOT / name).is_file() and not (ROOT / "bundle" / name).is_file()] == []


def heading_anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", TEXTS)
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", read(page)):
        linked = (ROOT / page).parent / target if target else ROOT / page
        assert linked.exists(), target
        assert not anchor or anchor in heading_anchors(linked), f"{target}#{anchor}"


def test_every_page_is_found_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+\.md)\)", read(README)))
    assert linked == set(DOCS)


@pytest.mark.parametrize("page", TEXTS)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^    make ([\w-]+)", read(page), re.MULTILINE)
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    assert page != README or targets == ["demo", "test"]


def test_the_map_of_rooms_is_the_order_of_imports() -> None:
    _, _, section = read("docs/explanation/architecture.md").partition("## The rooms")
    rooms = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", section.partition("\n## ")[0], re.MULTILINE)
    assert rooms == ROOMS


def test_the_model_card_has_the_sections_of_the_zoo() -> None:
    sections = re.findall(r"^## (.+)$", read("docs/README.md"), re.MULTILINE)
    assert sections == [
        "Description", "Data", "Performance", "Usage", "System Configuration", "Limitations", "Citation", "References",
    ]  # fmt: skip


@pytest.mark.parametrize("page", [page for page in TEXTS if page not in GENERATED])
def test_spelling_is_american(page: str) -> None:
    words = re.sub(r"`[^`]*`", "", prose(page)).lower()
    assert [word for word in BRITISH if word in words] == []


# --- The page of datasets --------------------------------------------------------------------------------------------
DATASETS = "docs/reference/datasets.md"


def words_of(text: str) -> str:
    return " ".join(text.split())


def test_the_table_of_datasets_is_in_step() -> None:
    rows = re.findall(r"^\| \[.*\|$", read(DATASETS), re.MULTILINE)
    expected = []
    for adapter in ADAPTERS.values():
        _, organs, cases, registration, terms, url = row_of(adapter)
        seen = "seen on real data" if adapter.seen else "built from its description"
        expected.append(f"| [{adapter.title}]({url}) | {organs} | {cases} | {terms} | {registration} | {seen} |")
    assert rows == expected


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_dataset_has_its_command_and_what_is_corrected(name: str) -> None:
    adapter, command = ADAPTERS[name], f"python -m scripts prepare {name} downloads/{name} --output data/{name}"
    assert command in commands(DATASETS)
    _, _, section = read(DATASETS).partition(f"\n**{adapter.title}**")
    files, said, fixes = section.split("```")[:3]
    assert adapter.layout in words_of(files)
    assert command in said
    assert words_of(fixes).startswith(words_of(adapter.fixes))

"""The command line: every tool is found, help is quick, and only the one asked for is loaded."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import get_type_hints

import pytest

from bundle.errors import InputError
from scripts.__main__ import COMMANDS, GROUPS, RENAMED, check_command, in_words, load_command, print_overview
from tests.paths import ROOT

RunCommand = Callable[..., subprocess.CompletedProcess[str]]
HEAVY = {"torch", "monai", "scipy", "matplotlib", "pandas"}
HELP = [[], ["--help"], ["bench", "busy", "--help"], *([name, "--help"] for name in COMMANDS)]
SHOW = """
import json, sys
from scripts.__main__ import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def test_every_command_is_found_and_described() -> None:
    named = [name for commands in GROUPS.values() for name in commands]
    assert sorted(named) == sorted(COMMANDS)
    for name in COMMANDS:
        assert inspect.getdoc(load_command(name))


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_loads_nothing_heavy(arguments: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    assert not modules & HEAVY
    assert (done.stdout + done.stderr).count("\n") > 10


def test_the_overview_has_a_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    print_overview()
    lines = capsys.readouterr().out.splitlines()
    for name in COMMANDS:
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line) <= 100


def test_benchmarks_are_listed(run_command: RunCommand) -> None:
    done = run_command("-m", "scripts", "bench", "--help")
    for name in ("busy", "check", "inference", "loss", "slices", "start", "views"):
        assert f"\n     {name}\n" in done.stdout + done.stderr


def test_threads_are_patient_before_torch_is_loaded(run_command: RunCommand) -> None:
    code = "import os, sys; from scripts.__main__ import main; sys.argv[1:] = []; main(); print(dict(os.environ))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "'OMP_WAIT_POLICY': 'PASSIVE'" in done.stdout
    assert "'GOMP_SPINCOUNT': " in done.stdout


# --- What is refused -------------------------------------------------------------------------------------------------
def test_a_misspelled_command_is_one_sentence(run_command: RunCommand) -> None:
    done = run_command("-m", "scripts", "chek", "data")
    assert done.returncode == 2
    assert done.stderr.strip() == 'error: chek: there is no such command; did you mean "check"?'


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("bench los", 'bench los: there is no such command; did you mean "bench loss"?'),
        ("bench loss --repeat 3", "--repeat: there is no such option; did you mean --repeats?"),
        ("segment a b --organ liver", "--organ: there is no such option; did you mean --organs?"),
        ("folds x --qqq", "--qqq: there is no such option; see --help"),
        ("qqq", "qqq: there is no such command; see --help"),
    ],
)
def test_a_misspelling_is_refused_with_what_was_probably_meant(arguments: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        check_command(arguments.split())
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("name", "old", "new"), [(name, old, new) for name, options in RENAMED.items() for old, new in options.items()]
)
def test_an_old_name_of_an_option_leads_to_the_new_one(name: str, old: str, new: str) -> None:
    assert new in inspect.signature(load_command(name)).parameters
    with pytest.raises(InputError, match=f"^--{old}: this option is now called --{new}$"):
        check_command([name, f"--{old}=1"])


def test_a_switch_can_be_turned_off() -> None:
    check_command(["segment", "a", "b", "--noskip_air", "--dicom-seg"])


def test_a_bad_input_behind_an_error_of_monai_is_one_sentence(run_command: RunCommand) -> None:
    code = (
        "import scripts.folds as folds; from bundle.errors import InputError; from scripts.__main__ import main\n"
        "import sys\n"
        "def fail(dataset):\n"
        "    try:\n        raise InputError('a.nii.gz: broken')\n"
        "    except InputError as error:\n        raise RuntimeError('failed to instantiate') from error\n"
        "folds.folds = fail; sys.argv[1:] = ['folds', 'x']; main()"
    )
    done = run_command("-c", code)
    assert (done.returncode, done.stderr) == (2, "error: a.nii.gz: broken\n")


# --- Kinds of options ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("phantom data --seed abc", "--seed: expected a whole number, found 'abc'"),
        ("phantom data --grid 5", "--grid: expected 3 whole numbers, such as 1,2,3, found 5"),
        ("phantom data --grid 5,6,x", "--grid: expected 3 whole numbers, such as 1,2,3, found (5, 6, 'x')"),
        ("phantom data -full 1.5", "--full: expected a whole number, found 1.5"),
        ("phantom data --difficulty nan", "--difficulty: expected a number, found 'nan'"),
        ("phantom --output", "--output: expected text, found True"),
        ("phantom data --workers", "--workers: expected a whole number, found True"),
        ("phantom", "phantom: OUTPUT must be given; see --help"),
        ("folds x --folds x", "--folds: expected a whole number, found 'x'"),
        ("folds x 5 0 liver more", "folds: 'more' is one value too many; name it, or see --help"),
        ("segment a b --preview yes", "--preview: expected no value, it is on or off, found 'yes'"),
        ("crossval x y --folds a", "--folds: expected a whole number or whole numbers, separated by commas, found 'a'"),
        ("bench loss --repeats x", "--repeats: expected a whole number, found 'x'"),
        ("run training --seed 1 --seed 2", "--seed: was given twice; leave one out"),
        ("run training more", "run: 'more' is one value too many; name it, or see --help"),
    ],
)
def test_a_value_of_another_kind_is_refused(arguments: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        check_command(arguments.split())
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    "arguments",
    [
        "phantom data --grid 32,32,16 --seed=3", "phantom 5", "segment a b --organs liver,spleen --scales 1",
        "check a b c", "phantom -o data -s 3",
        "crossval a b --folds 0,1", "crossval a b --values seed=1", "bench inference --lengths 100",
        "run training --config_file ['a','b'] --network_def::channels [1,2] -seed 3", "phantom --nothing --help",
    ],
)  # fmt: skip
def test_what_fits_is_left_alone(arguments: str) -> None:
    check_command(arguments.split())


def test_every_annotation_of_a_command_can_be_read() -> None:
    for name in COMMANDS:
        command = load_command(name)
        functions = [method for key, method in vars(command).items() if not key.startswith("_")]
        for function in functions if inspect.isclass(command) else [command]:
            assert all(in_words(hint) for key, hint in get_type_hints(function).items() if key != "return")

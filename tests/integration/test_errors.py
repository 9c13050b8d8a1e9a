"""Every bad input gets one clear sentence: planted for real, run for real, and written down in docs/errors.md."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.bad_inputs.checkpoints import CHECKPOINTS
from tests.integration.bad_inputs.commands import COMMANDS
from tests.integration.bad_inputs.configs import CONFIGS
from tests.integration.bad_inputs.datalists import DATALISTS
from tests.integration.bad_inputs.environments import ENVIRONMENTS
from tests.integration.bad_inputs.overlays import OVERLAYS
from tests.integration.bad_inputs.page import PAGE, REFRESH, write_page
from tests.integration.bad_inputs.record import CHECK, EVALUATING, INFERRING, SEGMENT, TRAINING, BadInput
from tests.integration.bad_inputs.running import VARIABLES, Answer, Forker, Workplace, complaints
from tests.integration.bad_inputs.scans import SCANS

GROUPS = {
    "configs": CONFIGS,
    "overlays": OVERLAYS,
    "datalists": DATALISTS,
    "scans": SCANS,
    "checkpoints": CHECKPOINTS,
    "environments": ENVIRONMENTS,
    "commands": COMMANDS,
}
EVERY = [(group, bad) for group, members in GROUPS.items() for bad in members]


class Answers:
    """What every bad input gets, each asked once."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace
        self.trained = workplace.train()
        self.known: dict[tuple[str, str], Answer] = {}

    def of(self, group: str, bad: BadInput) -> Answer:
        key = (group, bad.wrong)
        if key not in self.known:
            self.known[key] = self.workplace.run(bad, self.trained)
        return self.known[key]


@pytest.fixture(scope="module")
def workplace(tiny_cohorts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    forker = Forker()
    yield Workplace(tmp_path_factory.mktemp("bad"), tiny_cohorts, forker)
    forker.close()


@pytest.fixture(scope="module")
def answers(workplace: Workplace) -> Answers:
    return Answers(workplace)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "bad"), EVERY, ids=lambda part: part if isinstance(part, str) else part.wrong)
def test_a_bad_input_is_refused_with_one_sentence(answers: Answers, group: str, bad: BadInput) -> None:
    answer = answers.of(group, bad)
    found = complaints(bad, answer)
    assert not found, f"python -m {bad.command}\n{'; '.join(found)}\n{answer.stdout[-1000:]}\n{answer.stderr[-3000:]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [EVALUATING, INFERRING, SEGMENT, CHECK], ids=lambda command: BadInput("", command).shown
)
def test_without_a_fault_the_same_commands_end_well(answers: Answers, command: str) -> None:
    answer = answers.workplace.run(BadInput("nothing", command, trained=True), answers.trained)
    assert answer.code == 0, answer.stderr[-3000:]


@pytest.mark.slow
def test_the_page_has_what_the_commands_say(answers: Answers) -> None:
    said: dict[str, list[tuple[BadInput, str]]] = {group: [] for group in GROUPS}
    for group, bad in EVERY:
        answer = answers.of(group, bad)
        if answer.sentence and not complaints(bad, answer):
            said[group].append((bad, answer.sentence))
    page = write_page(said)
    if os.environ.get(REFRESH):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, (
        f"write docs/errors.md again: {REFRESH}=1 pytest -m slow {__file__}"
    )


def test_there_are_many_bad_inputs_and_no_two_of_a_group_are_called_alike() -> None:
    assert len(EVERY) >= 180
    assert len({(group, bad.wrong) for group, bad in EVERY}) == len(EVERY)


# --- The forker is as good as a new interpreter ----------------------------------------------------------------------
SMALL = {  # a module that ends in some way, in place of a command
    "ends well": "print('said')",
    "exits with a number": "import sys; sys.exit(7)",
    "exits with a sentence": "import sys; sys.exit('a sentence')",
    "does not catch an exception": "def fail():\n    raise KeyError('x')\nfail()",
    "has a hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(5)\nraise KeyError('x')",
    "has work to do at exit": "import atexit; atexit.register(print, 'at exit')",
    "misses a file": "open('nowhere')",
}


def last_line(text: str) -> str:
    """The last line without the time that MONAI's log begins it with."""
    return re.sub(r"^[\d-]+ [\d:,]+", "", text.strip().splitlines()[-1]) if text.strip() else ""


def as_new(folder: Path, *words: str) -> tuple[int, str, str]:
    variables = {**os.environ, **VARIABLES}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=variables, capture_output=True, text=True, timeout=120
    )
    return done.returncode, last_line(done.stdout), last_line(done.stderr)


def as_forked(workplace: Workplace, folder: Path, *words: str) -> tuple[int, str, str]:
    code = workplace.forker.run(folder, words)["code"]
    return code, *(last_line(Path(f"{folder}.{stream}").read_text()) for stream in ("stdout", "stderr"))


@pytest.mark.slow
@pytest.mark.parametrize("text", SMALL.values(), ids=SMALL)
def test_a_forked_program_ends_as_a_new_one_does(workplace: Workplace, tmp_path: Path, text: str) -> None:
    (tmp_path / "program.py").write_text(text)
    assert as_forked(workplace, tmp_path, "program") == as_new(tmp_path, "program")


@pytest.mark.slow
@pytest.mark.parametrize(
    "bad",
    [
        BadInput("confidence", f"{TRAINING} --confidence 2"),
        BadInput("misspelled", f"{TRAINING} --suprevision full"),
        BadInput("no weights", "scripts segment scan.nii.gz out --model nowhere.pt"),
        BadInput("no command", "scripts segmnt"),
    ],
    ids=lambda bad: bad.wrong,
)
def test_a_forked_command_ends_as_a_new_one_does(workplace: Workplace, bad: BadInput) -> None:
    folder = workplace.make(bad.wrong)
    assert as_forked(workplace, folder, *bad.words) == as_new(folder, *bad.words)


@pytest.mark.slow
def test_what_runs_on_is_stopped_and_complained_of(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.integration.bad_inputs.running.SECONDS", 1)
    (tmp_path / "program.py").write_text("import time; time.sleep(1000)")
    code = workplace.forker.run(tmp_path, ["program"])["code"]
    assert complaints(BadInput("", ""), Answer(code, "", "error: x"))[0].startswith("runs on")


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (Answer(None, unplanted="KeyError('model')"), "not planted"),
        (Answer(2, "", "a warning\nerror: a sentence\n  in two lines"), None),
        (Answer(1, "", "error: a sentence"), "exit code 1"),
        (Answer(2, "", "a warning"), "0 sentences"),
        (Answer(2, "", "error: a\nerror: b"), "2 sentences"),
        (Answer(2, "", "Traceback (most recent call last):\nerror: a"), "a traceback"),
        (Answer(2, "", "error: b"), "does not name a"),
        (Answer(2, "", "error: a", ["eval/cache/12.pt", "eval/prior.json"]), None),
        (Answer(2, "", "error: a", ["models/model.pt"]), "left behind: models/model.pt"),
        (Answer(2, "", "error: a", ["eval/.unfinished-1-x.json"]), "left behind: eval/.unfinished-1-x.json"),
    ],
)
def test_what_is_complained_of(answer: Answer, complaint: str | None) -> None:
    found = complaints(BadInput("", "", about=("a",)), answer)
    assert [text[: len(complaint or "")] for text in found] == ([] if complaint is None else [complaint])

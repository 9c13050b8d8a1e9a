"""Many command lines at a time, with real processes: order, budget, what is kept, failures and interruptions."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import InputError
from scripts.runs import ROOT, Run, bundle_command, is_finished, read_record, run_all_within, what_went_wrong

# Notes its start and end in a journal of lines that are appended whole.
NOTE = """
import os, sys, time
def note(word):
    with open({journal!r}, "a") as file:
        file.write(word + " {name}\\n")
note("start")
{body}
note("end")
"""


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
def make_run(tmp_path: Path, journal: Path) -> Callable[..., Run]:
    def make(name: str, body: str = "", needs: tuple[str, ...] = (), **settings: object) -> Run:
        code = NOTE.format(journal=str(journal), name=name, body=textwrap.dedent(body))
        steps = ((sys.executable, "-c", code),)
        return Run(name, tmp_path / "runs" / name, steps, settings, tuple(tmp_path / "runs" / need for need in needs))

    return make


def events(journal: Path, word: str = "") -> list[str]:
    return [line for line in journal.read_text().splitlines() if line.startswith(word)]


def most_at_once(journal: Path) -> int:
    now = most = 0
    for line in events(journal):
        now += 1 if line.startswith("start") else -1
        most = max(most, now)
    return most


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited in vain")


# --- Order and budget ------------------------------------------------------------------------------------------------
def test_a_run_starts_when_what_it_needs_is_finished(make_run: Callable[..., Run], journal: Path) -> None:
    runs = [make_run("last", needs=("left", "right")), make_run("left", needs=("first",)),
            make_run("right", needs=("first",)), make_run("first")]  # fmt: skip
    run_all_within(runs, cores=4, memory=100)
    lines = events(journal)
    assert lines[:2] == ["start first", "end first"]
    assert lines[-2:] == ["start last", "end last"]
    assert all(is_finished(run, runs) for run in runs)


def test_steps_follow_each_other_with_their_threads_and_log(tmp_path: Path) -> None:
    tell = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], os.getcwd())"
    complain = "import sys; print('to stderr', file=sys.stderr)"
    run = Run("one", tmp_path / "one", tuple((sys.executable, "-c", code) for code in (tell, complain)), {})
    run_all_within([run], cores=3, threads=3)
    assert (tmp_path / "one" / "log.txt").read_text().splitlines() == [f"3 3 {ROOT}", "to stderr"]


@pytest.mark.parametrize(
    ("budget", "most"),
    [
        ({"cores": 2}, 2),
        ({"cores": 5, "threads": 2}, 2),
        ({"cores": 8, "memory": 0.2, "run_memory": 0.15}, 1),
        ({"cores": 8, "memory": 0.01, "run_memory": 2.0}, 1),  # one always may
    ],
)
def test_the_budget_is_never_exceeded(
    make_run: Callable[..., Run], journal: Path, budget: dict[str, Any], most: int
) -> None:
    runs = [make_run(f"run{number}", "held = b'1' * int(130e6); time.sleep(0.3)") for number in range(3)]
    run_all_within(runs, **budget)
    assert most_at_once(journal) <= most
    assert len(events(journal, "end")) == len(runs)


def test_as_many_run_at_once_as_the_budget_allows(make_run: Callable[..., Run], journal: Path) -> None:
    wait = f"while open({str(journal)!r}).read().count('start') < 3: time.sleep(0.05)"  # for all three
    run_all_within([make_run(name, wait) for name in "abc"], cores=3, memory=100)
    assert most_at_once(journal) == 3


def test_memory_is_measured_with_that_of_grandchildren(make_run: Callable[..., Run]) -> None:
    child = "import time; held = b'1' * int(100e6); time.sleep(1)"
    run = make_run("big", f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}])")
    run_all_within([run], cores=1)
    record = json.loads((run.folder / "run.json").read_text())
    assert 0.1 < record["peak_memory_gb"] < 0.2  # 100 MB held, and two interpreters
    assert set(record) == {"settings", "needs", "seconds", "peak_memory_gb"}


def test_what_was_measured_limits_what_follows(make_run: Callable[..., Run], journal: Path) -> None:
    run_all_within([make_run("first", "held = b'1' * int(150e6); time.sleep(0.5)")], cores=1)
    runs = [make_run("first"), *(make_run(f"run{number}", "time.sleep(0.3)") for number in range(3))]
    run_all_within(runs, cores=8, memory=0.3, run_memory=0.01)
    assert most_at_once(journal) == 1  # of 0.01 GB there would be room for thirty


# --- What is kept ----------------------------------------------------------------------------------------------------
def test_finished_runs_are_kept_and_others_start_again(make_run: Callable[..., Run], journal: Path) -> None:
    runs = [make_run(name, seed=1) for name in ("a", "b", "c")]
    run_all_within(runs, cores=1)
    (runs[1].folder / "run.json").unlink()  # as if it had been interrupted
    (runs[1].folder / "half").mkdir()
    (runs[1].folder / "half" / "file").touch()
    run_all_within([runs[0], runs[1], make_run("c", seed=2)], cores=1)
    assert events(journal, "start") == ["start a", "start b", "start c", "start b", "start c"]
    assert not (runs[1].folder / "half").exists()
    assert json.loads((runs[2].folder / "run.json").read_text())["settings"] == {"seed": 2}


def test_a_run_that_goes_on_finds_what_an_interruption_left_unless_something_has_changed(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Run) -> Path:
        run_all_within([run], cores=1)
        (run.folder / "run.json").unlink()
        (run.folder / "models").mkdir(exist_ok=True)
        left = run.folder / "models" / "checkpoint.pt"
        left.touch()
        return left

    run = replace(make_run("a", seed=1), goes_on=True)
    left = interrupted(run)
    run_all_within([run], cores=1)
    assert left.exists()
    run_all_within([replace(run, settings={"seed": 2})], cores=1)
    assert not left.exists()
    left = interrupted(run)
    monkeypatch.setattr("bundle.configs.running.code_key", lambda: "another program")
    run_all_within([run], cores=1)  # which would refuse to go on
    assert not left.exists()


def test_a_run_starts_again_when_what_it_needs_is_made_otherwise(make_run: Callable[..., Run], journal: Path) -> None:
    after = make_run("after", needs=("before",))
    run_all_within([make_run("before", seed=1), after], cores=1)
    run_all_within([after], cores=1)  # what it needs is finished, though not among the runs
    assert len(events(journal, "start")) == 2
    run_all_within([make_run("before", seed=2)], cores=1)
    run_all_within([make_run("before", seed=2), after], cores=1)
    assert events(journal, "start")[2:] == ["start before", "start after"]
    (after.folder.parent / "before" / "run.json").unlink()
    run_all_within([make_run("before", seed=2), after], cores=1)
    assert events(journal, "start")[4:] == ["start before", "start after"]


def test_settings_may_hold_paths_and_tuples(make_run: Callable[..., Run], journal: Path) -> None:
    for _ in range(2):
        run_all_within([make_run("a", path=Path("x"), size=(1, 2))], cores=1)
    assert events(journal, "start") == ["start a"]


def test_a_killed_parent_takes_its_processes_along_and_the_same_again_goes_on(
    tmp_path: Path, make_run: Callable[..., Run], journal: Path
) -> None:
    gate = tmp_path / "gate"
    quick = make_run("quick")
    slow = make_run("slow", f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)", needs=("quick",))
    code = (
        "from pathlib import Path, PosixPath\nfrom scripts.runs import Run, run_all_within\n"
        f"run_all_within([{quick!r}, {slow!r}], cores=2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.DEVNULL)
    wait_until(lambda: "start slow" in events(journal))
    (slow.folder / "rest").touch()
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    gate.touch()
    run_all_within([quick, slow], cores=2)
    assert events(journal) == ["start quick", "end quick", "start slow", "start slow", "end slow"]
    assert not (slow.folder / "rest").exists()
    assert is_finished(slow, [quick])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_all_processes(
    tmp_path: Path, make_run: Callable[..., Run], journal: Path, number: signal.Signals
) -> None:
    grandchild = "import subprocess; p = subprocess.Popen(['sleep', '600']); note(f'pid {p.pid}'); time.sleep(600)"
    runs = [make_run(name, grandchild) for name in ("a", "b")]
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def end(*_):\n    raise SystemExit(1)\nsignal.signal(signal.SIGTERM, end)\n"
        "from pathlib import PosixPath\nfrom scripts.runs import Run, run_all_within\n"
        f"run_all_within({runs!r}, cores=2)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(events(journal, "pid")) == 2)
    parent.send_signal(number)
    _, said = parent.communicate(timeout=60)
    assert parent.returncode != 0
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    for line in events(journal, "pid"):
        process = int(line.split()[1])
        wait_until(lambda process=process: not is_alive(process))  # type: ignore[misc]
    assert not any((run.folder / "run.json").exists() for run in runs)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


# --- What goes wrong -------------------------------------------------------------------------------------------------
def test_a_failure_is_told_and_does_not_stop_others(make_run: Callable[..., Run], journal: Path) -> None:
    bad = make_run("bad", "print('error: the scan is torn', file=sys.stderr); print('bye'); sys.exit(2)")
    crash = make_run("crash", "raise RuntimeError('a bug')")
    runs = [bad, crash, make_run("after", needs=("bad",)), make_run("later", needs=("after",)), make_run("good")]
    with pytest.raises(InputError) as raised:
        run_all_within(runs, cores=1)
    sentence = str(raised.value)
    assert "2 of 5 runs failed" in sentence
    assert f"bad: the scan is torn (see {bad.folder / 'log.txt'})" in sentence
    assert f"crash: RuntimeError: a bug (see {crash.folder / 'log.txt'})" in sentence
    assert "after, later" in sentence
    assert events(journal, "end") == ["end good"]
    assert not (bad.folder / "run.json").exists()


def test_a_killed_run_is_told(make_run: Callable[..., Run]) -> None:
    with pytest.raises(InputError, match="SIGKILL; the system does that when memory runs out"):
        run_all_within([make_run("a", "os.kill(os.getpid(), 9)")], cores=1)


def test_a_later_step_is_not_run_after_a_failure(tmp_path: Path) -> None:
    steps = ((sys.executable, "-c", "raise SystemExit(3)"), (sys.executable, "-c", "print('second')"))
    with pytest.raises(InputError, match="exit code 3"):
        run_all_within([Run("a", tmp_path / "a", steps, {})], cores=1)
    assert (tmp_path / "a" / "log.txt").read_text() == ""


def test_a_folder_of_somebody_else_is_left_alone(make_run: Callable[..., Run], journal: Path) -> None:
    first, mine = make_run("first"), make_run("mine")
    mine.folder.mkdir(parents=True)
    (mine.folder / "thesis.txt").touch()
    with pytest.raises(InputError, match="was not made by this command"):
        run_all_within([first, mine], cores=1)
    assert (mine.folder / "thesis.txt").exists()
    assert not events(journal)  # refused before any work


def test_a_folder_in_which_another_process_works_is_left_alone(
    make_run: Callable[..., Run], journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr("scripts.runs.PATIENCE", 0.2)
    run = make_run("a")
    run.folder.mkdir(parents=True)
    with (run.folder / ".run").open("ab") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process is at work there"):
            run_all_within([run], cores=1)
    run_all_within([run], cores=1)
    assert events(journal, "end") == ["end a"]


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"cores": 0}, "cores: expected a whole number from 1 on, found 0"),
        ({"cores": 2, "threads": 4}, "threads: expected at most the 2 cores"),
        ({"cores": 1, "memory": -1}, "memory: expected GB such as 8, found -1"),
    ],
)
def test_a_bad_budget_is_refused(make_run: Callable[..., Run], budget: dict[str, int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run_all_within([make_run("a")], **budget)


def test_runs_that_share_a_folder_or_lack_what_they_need_are_refused(make_run: Callable[..., Run]) -> None:
    with pytest.raises(InputError, match="two runs would write there"):
        run_all_within([make_run("a"), make_run("a")], cores=1)
    with pytest.raises(InputError, match="two runs would write there"):
        run_all_within([make_run("a"), make_run("a/b")], cores=1)
    with pytest.raises(InputError, match="run a needs what is made there, and no run makes it"):
        run_all_within([make_run("a", needs=("b",))], cores=1)


def test_the_command_of_a_bundle_is_what_a_user_types() -> None:
    command = bundle_command("training", ["a.yaml", Path("b.yaml")], fold=None, seed=1)
    assert command[1:] == (
        "-W", "ignore", "-m", "scripts", "run", "training", "--config_file", "['a.yaml', 'b.yaml']",
        "--fold", "None", "--seed", "1",
    )  # fmt: skip
    assert command[0] == sys.executable
    assert os.access(command[0], os.X_OK)


@pytest.mark.parametrize("text", ["", "[]", "\udcff", "[" * 100_000, '{"seconds": "long"}', '{"peak_memory_gb": NaN}'])
def test_a_damaged_record_is_that_of_no_finished_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text, errors="surrogateescape")
    assert read_record(tmp_path) is None


def test_all_mistakes_that_a_run_named_are_passed_on(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("begin\nerror: 2 mistakes in the config:\n  --seed: wrong\n  --fold: wrong\nbye\n")
    assert what_went_wrong(log, 2) == "2 mistakes in the config: --seed: wrong; --fold: wrong"
    log.write_text("begin\n  the end \n")
    assert what_went_wrong(log, 1) == "the end"

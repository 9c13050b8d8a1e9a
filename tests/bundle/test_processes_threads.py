"""How threads wait: what is set for programs to come, and when a user of a running one is warned."""

import logging
import os

import psutil
import pytest

from bundle.processes import patient_threads, warn_if_crowded

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@pytest.fixture
def _undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that monkeypatch removes what a test sets
        monkeypatch.delenv(name)


def pretend(monkeypatch: pytest.MonkeyPatch, load: float, now: float) -> None:
    """A machine of four cores with a mean load, and the percentage of its cores that is in use now."""
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(psutil, "cpu_percent", lambda interval: now)


@pytest.mark.usefixtures("_undecided")
def test_threads_are_patient_unless_the_user_has_decided() -> None:
    patient_threads()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert int(os.environ["GOMP_SPINCOUNT"]) >= 0
    for decided in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}):
        environment = dict(decided)
        patient_threads(environment)
        assert environment == decided
    fresh: dict[str, str] = {}
    patient_threads(fresh)
    assert set(fresh) == set(NAMES)


@pytest.mark.usefixtures("_undecided")
@pytest.mark.parametrize(
    ("load", "now", "warned"),
    [(4.2, 100.0, True), (3.5, 95.0, True), (0.5, 100.0, False), (4.2, 10.0, False)],
)
def test_a_crowded_machine_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, load: float, now: float, warned: bool
) -> None:
    pretend(monkeypatch, load, now)
    with caplog.at_level(logging.WARNING):
        warn_if_crowded()
    assert len(caplog.records) == warned
    if warned:
        assert "4 cores" in caplog.text
        assert "`export OMP_WAIT_POLICY=PASSIVE GOMP_SPINCOUNT=" in caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_who_has_decided_is_not_warned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    pretend(monkeypatch, 40.0, 100.0)
    monkeypatch.setenv(name, "1")
    warn_if_crowded()
    assert not caplog.records

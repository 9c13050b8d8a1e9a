# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A picture of OHIF, the viewer inside MONAI Label, with a CT and its DICOM SEG from the archive.

    python -m label.screenshot http://127.0.0.1:8000 STUDY_UID ohif.png

Needs Chromium, its driver and selenium. The browser has no window, and reaches nothing but the server.
"""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from bundle.errors import InputError
from bundle.files import whole_file

__all__ = ["take_screenshot"]

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--no-proxy-server"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--enable-unsafe-swiftshader",  # OHIF draws with WebGL, and there is no GPU
)
INSTALL = "install Debian's packages chromium and chromium-driver"
WAIT = 120.0  # seconds for each step; without a GPU the browser draws with the processor
LIST = '[data-cy="study-browser-thumbnail"]'
SEG = '[data-cy="study-browser-thumbnail-no-image"]'
VIEW = '[data-cy="viewport-pane"]'
PLACE = '[data-cy="viewport-overlay-bottom-right"]'  # "I:1 (1/80)"
ORGAN_PIXELS = 300  # of the view's middle, strongly colored


def take_screenshot(
    server_url: str,
    study_uid: str,
    output_png: str | Path,
    slice_number: int | None = None,
    width: int = 1400,
    height: int = 900,
) -> Path:
    """Open a study in OHIF, load its DICOM SEG over the CT, and take a picture.

    Args:
        server_url: of a running MONAI Label server whose studies are a DICOMweb server.
        study_uid: of a study with a CT series and a SEG of it; the first SEG of its list is shown.
        output_png: the picture.
        slice_number: from 1 on; the middle one where it is None.
        width: of the browser, in pixels.
        height: of the browser, in pixels.

    Returns:
        The picture's path.

    Raises:
        InputError: when there is no browser, no server, no SEG, or nothing of it is to be seen.
    """
    server, study = str(server_url).rstrip("/"), str(study_uid)
    check_server(server)
    with browser(server, width, height) as driver:
        driver.get(f"{server}/ohif/viewer?StudyInstanceUIDs={quote(study)}")
        wait(lambda: find(driver, LIST), f"{server}: OHIF shows no series of study {study}; is it in the archive?")
        wait(lambda: find(driver, SEG), f"{server}: study {study} has no DICOM SEG; save a final label first")
        open_seg(driver, f"{server}: OHIF does not open the DICOM SEG of study {study}; look at it in a browser")
        show_names(driver)
        go_to_slice(driver, slice_number)
        unseen = f"{server}: OHIF shows no organ in this slice of study {study}; choose another slice_number"
        wait(lambda: colored_pixels(driver) >= ORGAN_PIXELS, unseen)
        with whole_file(output_png) as unfinished:
            unfinished.write_bytes(driver.get_screenshot_as_png())
    return Path(output_png)


# --- The browser -----------------------------------------------------------------------------------------------------
def check_server(server: str) -> None:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{server}/ohif/", timeout=30):
            pass
    except (OSError, ValueError) as error:
        raise InputError(f"{server}: expected a running MONAI Label server with OHIF ({error}); start it") from None


@contextmanager
def browser(server: str, width: int, height: int) -> Iterator[Any]:
    """Chromium with a profile of its own.

    OHIF asks for fonts on the internet, so no name but the server's is looked up.
    """
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ModuleNotFoundError:
        raise InputError("screenshot: needs the package selenium; install it with: pip install selenium") from None
    program, driver_program = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver_program is None:
        raise InputError(f"screenshot: Chromium or its driver is not installed; {INSTALL}")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        rules = f"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE {urlsplit(server).hostname}"
        for flag in (*FLAGS, rules, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=Service(driver_program))
        try:
            yield driver
        finally:
            driver.quit()


def find(driver: Any, selector: str) -> Any:
    """The first element, None where there is none."""
    found = driver.find_elements("css selector", selector)
    return found[0] if found else None


def wait(condition: Callable[[], Any], sentence: str, seconds: float = WAIT) -> Any:
    """What the condition answers once that is something; an InputError when it never is.

    An element that the page has just replaced is looked for again.
    """
    from selenium.common.exceptions import WebDriverException

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = condition()
            if found:
                return found
        except WebDriverException:
            pass
        time.sleep(0.5)
    raise InputError(sentence)


# --- OHIF ------------------------------------------------------------------------------------------------------------
def open_seg(driver: Any, failed: str) -> None:
    """Double-click the SEG in the list of series, and say yes to loading it over its CT."""
    from selenium.webdriver import ActionChains

    wait(lambda: shown_slice(driver), failed)  # the CT comes first
    notice = find(driver, '[data-cy="confirm-and-hide-button"]')
    if notice:
        notice.click()

    def ask() -> Any:
        ActionChains(driver).double_click(find(driver, SEG)).perform()
        time.sleep(2)
        return find(driver, '[data-cy="yes-hydrate-btn"]')

    def agree() -> bool:
        button = find(driver, '[data-cy="yes-hydrate-btn"]')
        if button:
            button.click()
        return button is None

    wait(ask, failed)
    wait(agree, failed)
    wait(lambda: shown_slice(driver), failed)


def show_names(driver: Any) -> None:
    """Open the panel that lists the segments."""
    tab = find(driver, '[data-cy="panelSegmentation-btn"]')
    if tab:
        tab.click()
        time.sleep(2)  # the view becomes narrower


def shown_slice(driver: Any) -> tuple[int, int] | None:
    """Number of the slice and how many there are, as OHIF writes them into a corner."""
    place = find(driver, PLACE)
    found = re.search(r"\((\d+)/(\d+)\)", place.text) if place else None
    return (int(found[1]), int(found[2])) if found else None


def go_to_slice(driver: Any, wanted: int | None) -> None:
    """With the arrow keys, as a reader would."""
    from selenium.webdriver import ActionChains, Keys

    _, count = wait(lambda: shown_slice(driver), "OHIF shows no slices; look at the study in a browser")
    goal = (count + 1) // 2 if wanted is None else wanted
    if not 1 <= goal <= count:
        raise InputError(f"slice_number: expected a number from 1 to {count}, found {wanted}; choose another one")
    ActionChains(driver).click(find(driver, VIEW)).perform()

    def step() -> bool:
        now = shown_slice(driver)
        if now is None:
            return False
        key = Keys.ARROW_DOWN if now[0] < goal else Keys.ARROW_UP
        for _ in range(min(10, abs(goal - now[0]))):
            ActionChains(driver).send_keys(key).perform()
        return now[0] == goal

    wait(step, f"OHIF does not go to slice {goal}; choose another slice_number")


def colored_pixels(driver: Any) -> int:
    """Strongly colored pixels in the middle of the view: a CT is gray there, organs are not; text is at the rim."""
    from PIL import Image

    picture = Image.open(io.BytesIO(find(driver, VIEW).screenshot_as_png)).convert("RGB")
    across, down = picture.width // 5, picture.height // 5
    pixels = np.asarray(picture.crop((across, down, 4 * across, 4 * down)), np.int16)
    return int((pixels.max(axis=2) - pixels.min(axis=2) > 60).sum())


if __name__ == "__main__":
    import fire

    from bundle.errors import show_input_errors_plainly

    show_input_errors_plainly()
    fire.Fire(lambda *args, **options: print(take_screenshot(*args, **options)))

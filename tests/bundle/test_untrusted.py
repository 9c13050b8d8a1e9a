"""Files of strangers: JSON that is JSON, names that stay where they are put, paths that are paths."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.errors import InputError
from bundle.untrusted import NAME_BYTES, alike_on_disk, check_name, check_path, read_json, shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON in UTF-8"),
        (b'"\xff"', "not valid JSON in UTF-8"),
        (b"", "not valid JSON"),
        (b'{"a": {"b": 1, "b": 2}}', 'has the key "b" twice in one object; remove one of them'),
        (b"[NaN]", "expected finite numbers, found NaN"),
        (b"[-Infinity]", "expected finite numbers, found -Infinity"),
        (b"[1e999]", "expected finite numbers, found 1e999"),
        (b"[" + b"9" * 5000 + b"]", "expected numbers of at most 18 digits"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested too deep"),
        (b'["\\ud800"]', "not valid JSON in UTF-8"),
    ],
)
def test_what_is_no_json_of_ours_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"a.json: .*{message}") as caught:
        read_json(path)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "gone.json").symlink_to("nowhere.json")
    for name in (".", "none.json", "gone.json", "loop.json", "x" * 300, "nul\0"):
        with pytest.raises(InputError, match="expected a JSON file, but it cannot be read"):
            read_json(tmp_path / name)

    def forbidden(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(InputError, match=r"a.json: expected a JSON file, but it cannot be read \(Permission denied\)"):
        read_json("a.json")


def test_what_is_json_is_read(tmp_path: Path) -> None:
    record = {"a": [1, -0.5, None, True, "é 肝"], "b": {"a": {}}}
    (tmp_path / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(record, ensure_ascii=False).encode())
    assert read_json(tmp_path / "a.json") == record


@pytest.mark.parametrize(
    "name",
    [
        "../../x", "..", ".", ".hidden", "/etc/x", "a/b", "a\\b", "", "  ", "a\0b", "a\nb", "a\x7f", "\ud800",
        "a\u2028b",
        "x" * (NAME_BYTES + 1), "é" * (NAME_BYTES // 2 + 1), None, 17, True, ["a"],
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_or_cannot_be_written_are_refused(name: Any) -> None:
    with pytest.raises(InputError, match=r"^the case: expected a name.* found .*; choose another name$"):
        check_name(name, "the case")


@settings(deadline=None)
@given(st.text(max_size=300))
def test_a_name_that_is_allowed_can_be_written_in_its_folder(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    try:
        check_name(name, "the case")
    except InputError:
        return
    path = folder / f".unfinished-1234567-{name}.nii.gz"  # longer than any name that is written
    path.touch()
    assert path.resolve().parent == folder.resolve()
    path.unlink()


def test_longest_and_odd_names_that_are_allowed() -> None:
    for name in ("x" * NAME_BYTES, "Fall 1 (ü)", "a..b", "肝", "1.5", "a:b", "patient^name"):
        assert check_name(name, "the case") == name
    with pytest.raises(InputError, match="expected a name without any of : \\*, found"):
        check_name("a:b", "the case", forbidden=":*")


@pytest.mark.parametrize("path", ["", " ", "a\0b", "a\nb", None, 5, ["a"], "x" * 256, "x/" * 3000])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(InputError, match=r"^image: expected (the path of a file|a path of at most 4000 bytes)"):
        check_path(path, "image")


def test_a_path_may_lead_anywhere() -> None:
    for path in ("../other/ct.nii.gz", "/data/ct.nii.gz", "a/b c.nii"):
        assert check_path(path, "image") == path


def test_names_that_some_file_systems_take_for_one() -> None:
    assert alike_on_disk(["Café"]) == alike_on_disk(["cafe\u0301"])
    assert alike_on_disk(["a", "b"]) != alike_on_disk(["a", "c"])


@settings(deadline=None)
@given(st.recursive(st.none() | st.text() | st.floats() | st.binary(), st.lists))
def test_a_value_is_shown_in_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= 81
    assert len(shown(value).splitlines()) == 1

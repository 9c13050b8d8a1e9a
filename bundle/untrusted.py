# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What comes from files that anybody may have written: JSON, names that become file names, and paths.

It is read as data, and refused with a sentence where it is not what it should be. Nothing of it is ever executed.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.errors import InputError

__all__ = ["NAME_BYTES", "alike_on_disk", "check_name", "check_path", "is_number", "is_whole", "read_json", "shown"]


NAME_BYTES = 200  # file systems allow 255: room for endings, and for the name a file has while it is written

PART_BYTES, PATH_BYTES = 255, 4000  # of a folder or file in a path, and of the whole path

DIGITS = 18  # of a whole number: less than 64 bits

SHOWN = 80  # characters of a value in a message

CONTROL = {"Cc", "Cs", "Zl", "Zp"}  # categories of Unicode: control characters, surrogates, line separators


# --- Values ----------------------------------------------------------------------------------------------------------
def shown(value: Any) -> str:
    """A value as a message shows it: in one line, and not too long of it.

    >>> print(shown("two\\nlines"), shown([1, None]))
    "two\\nlines" [1, null]
    """
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError, TypeError):
        text = f"a {type(value).__name__}"
    text = "".join("?" if unicodedata.category(sign) in CONTROL else sign for sign in text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def is_whole(value: Any) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a finite number; True and False are none.

    >>> is_number(0.5), is_number(True), is_number(float("nan")), is_number("1")
    (True, False, False, False)
    """
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


# --- JSON ------------------------------------------------------------------------------------------------------------
def read_json(path: str | Path) -> Any:
    """What a JSON file holds; its numbers are finite, its keys are given once, its texts can be written again.

    Raises:
        InputError: when it is not such a file, or cannot be read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.json").write_text('{"liver": 1, "liver": 2}')
    ...     read_json(Path(folder, "a.json"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: ...a.json: has the key "liver" twice in one object; remove one of them
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid JSON in UTF-8 ({error}); correct it or save it again") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise InputError(
            f"{path}: expected a JSON file, but it cannot be read ({reason}); correct the path, or allow reading it"
        ) from None

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"{path}: has the key {shown(twice)} twice in one object; remove one of them")
        return record

    def finite(number: str) -> float:
        if not math.isfinite(float(number)):
            raise InputError(f"{path}: expected finite numbers, found {number[:SHOWN]}; correct it")
        return float(number)

    def whole(number: str) -> int:
        if len(number) > DIGITS:
            raise InputError(f"{path}: expected numbers of at most {DIGITS} digits, found {number[:SHOWN]}; correct it")
        return int(number)

    try:
        record = json.loads(text, object_pairs_hook=once, parse_float=finite, parse_int=whole, parse_constant=finite)
        json.dumps(record, ensure_ascii=False).encode()  # half of a character (\ud800) is no text
    except InputError:
        raise
    except RecursionError:
        raise InputError(f"{path}: its JSON is nested too deep to be one of ours; correct it") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON in UTF-8 ({error}); correct it or save it again") from None
    return record


# --- Names and paths -------------------------------------------------------------------------------------------------
def check_name(name: Any, what: str, cure: str = "choose another name", forbidden: str = "/\\") -> str:
    """A name that may be part of a file's name: it stays in the folder it is put into, and can be written.

    Args:
        name: a short text without separators and control characters that does not begin with a dot.
        what: what has the name, for the message.
        cure: what to do, for the message.
        forbidden: characters that it must not have; separators always are among them.

    Raises:
        InputError: when it is not.

    >>> check_name("patient 1.5", "the case")
    'patient 1.5'
    >>> check_name("../../x", "the case", "rename it")
    Traceback (most recent call last):
    bundle.errors.InputError: the case: expected a name that does not begin with a dot, found "../../x"; rename it
    """
    if not isinstance(name, str):
        problem = "a name in quotes"
    elif not name.strip():
        problem = "a name"
    elif name.startswith("."):
        problem = "a name that does not begin with a dot"
    elif any(sign in forbidden or sign in "/\\" for sign in name):
        problem = f"a name without any of {' '.join(forbidden)}"
    elif has_control(name):
        problem = "a name without control characters"
    elif len(name.encode()) > NAME_BYTES:
        problem = f"a name of at most {NAME_BYTES} bytes"
    else:
        return name
    raise InputError(f"{what}: expected {problem}, found {shown(name)}; {cure}")


def has_control(text: str) -> bool:
    """Whether a text has control characters, or such that no file system takes."""
    return any(unicodedata.category(sign) in CONTROL for sign in text)


def check_path(path: Any, what: str) -> str:
    """The path of a file to be read: it may lead anywhere, but it is one.

    Args:
        path: a text that is not empty, without control characters, that a file system can look up.
        what: what is there, for the message.

    Raises:
        InputError: when it is no such text.
    """
    if not isinstance(path, str) or not path.strip() or has_control(path):
        problem = "the path of a file"
    elif len(path.encode()) > PATH_BYTES or any(len(part.encode()) > PART_BYTES for part in Path(path).parts):
        problem = f"a path of at most {PATH_BYTES} bytes, and {PART_BYTES} in each part"
    else:
        return path
    raise InputError(f"{what}: expected {problem}, found {shown(path)}; correct it")


def alike_on_disk(names: Sequence[str]) -> tuple[str, ...]:
    """Equal for names that some file systems take for one: those that differ by letter case, or by how ü is stored.

    >>> alike_on_disk(["livers", "Case1"]) == alike_on_disk(["livers", "case1"])
    True
    """
    return tuple(unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()) for name in names)

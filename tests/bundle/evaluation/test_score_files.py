"""Score files: the format that tools of others read, exact numbers, and sentences about what is damaged."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import InputError
from bundle.evaluation.score_files import METRICS, SCORE_COLUMNS, read_score_file, rows_of, scores_of, write_score_file

ROWS: list[dict[str, Any]] = [
    {"cohort": "t", "case": 'a, "b"', "organ": "liver", "status": "scored",
     "dice": 0.1 + 0.2, "surface_distance": 1e-17, "hausdorff": 5.0, "hausdorff95": 1 / 3, "surface_dice": 1.0},
    {"cohort": "NA", "case": "001", "organ": "nan", "status": "absent", **dict.fromkeys(METRICS)},
]  # fmt: skip
HEAD = ",".join(SCORE_COLUMNS) + "\n"


def test_the_file_is_the_one_that_the_csv_module_writes(tmp_path: Path) -> None:
    write_score_file(tmp_path / "scores.csv", scores_of(ROWS))
    expected = io.StringIO(newline="")
    writer = csv.DictWriter(expected, SCORE_COLUMNS)
    writer.writeheader()
    writer.writerows(ROWS)
    assert (tmp_path / "scores.csv").read_bytes() == expected.getvalue().encode()


def test_numbers_are_exact_and_texts_stay_texts(tmp_path: Path) -> None:
    write_score_file(tmp_path / "scores.csv", scores_of(ROWS))
    assert rows_of(read_score_file(tmp_path / "scores.csv")) == ROWS


def test_further_columns_are_kept_and_blank_lines_skipped(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("fold," + HEAD + "\n0,t,a,liver,scored,0.5,,,,\n\n")
    (row,) = rows_of(read_score_file(tmp_path / "scores.csv"))
    assert (row["fold"], row["dice"], row["hausdorff"]) == ("0", 0.5, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "scores.csv: expected a table of scores, but it has no column cohort, case"),
        (b"\xff\xfe\x00", "scores.csv: expected a table of scores, but it cannot be read"),
        ((HEAD + "t,a,liver,scored,0.5,,,,\nt,a,sple").encode(), "line 3: expected 9 fields, found fewer; was it cut"),
        ((HEAD + "t,a,liver,scored,0.5,,,,,\n").encode(), "line 2: expected 9 fields, found 10"),
        ((HEAD + "\nt,a,liver,scored,good,,,,\n").encode(), "line 3: expected a number or nothing as a score"),
        ((HEAD + "t,a,liver,scored,1.5,,,,\n").encode(), "line 2: expected a dice from 0 on, up to 1, found 1.5"),
        ((HEAD + "t,a,liver,scored,nan,,,,\n").encode(), "line 2: expected a dice from 0 on, up to 1, found nan"),
        ((HEAD + "t,a,liver,scored,,-1,,,\n").encode(), "line 2: expected a surface_distance from 0 on, found -1"),
        ((HEAD + "t,a,liver,scored,,,inf,,\n").encode(), "line 2: expected a hausdorff from 0 on, found inf"),
        ((HEAD + "t,a,liver,fine,0.5,,,,\n").encode(), 'line 2: expected a status out of scored, .*, found "fine"'),
        (("dice," + HEAD).encode(), "but it has a column twice"),
        ((HEAD + "t,a\0,liver,scored,0.5,,,\n").encode(), "scores.csv"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "scores.csv").write_bytes(text)
    with pytest.raises(InputError, match=message):
        read_score_file(tmp_path / "scores.csv")

"""Tables of text: columns of a terminal, Markdown, and dashes for what is unknown."""

from bundle.evaluation.tables import Table, number


def test_texts_are_left_and_numbers_right() -> None:
    table = Table(["cohort", "annotated", "cases"], [["full", "13 organs", "3"], ["livers", "liver", "12"]], texts=2)
    assert table.text().splitlines() == [
        "cohort  annotated  cases",
        "full    13 organs      3",
        "livers  liver         12",
    ]
    assert table.markdown().splitlines()[1] == "| --- | --- | ---: |"


def test_no_line_ends_with_blanks() -> None:
    assert Table(["a", "b"], [["long text", ""]], texts=2).text().splitlines() == ["a          b", "long text"]


def test_markdown_escapes_bars_and_marks_the_best() -> None:
    table = Table(["a|b", "Dice"], [["x", "1"]], kinds=[["", "best"]])
    assert table.markdown().splitlines()[::2] == ["| a\\|b | Dice |", "| x | **1** |"]


def test_a_table_without_rows_is_its_head() -> None:
    assert Table(["organ", "Dice"], []).text() == "organ  Dice"


def test_an_unknown_number_is_a_dash() -> None:
    assert [number(0.12345), number(12.0, 1), number(None)] == ["0.123", "12.0", "–"]

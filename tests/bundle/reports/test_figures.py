"""What figures share: legends of even lines, records of one stage, and no side effects at import."""

import subprocess
from collections.abc import Callable

from bundle.reports.figures import add_legend, even_columns, grid_of_axes, legend_line, records_of


def test_a_legend_has_lines_of_about_equal_length() -> None:
    assert [even_columns(count, 7) for count in (1, 7, 8, 13, 15)] == [1, 7, 4, 7, 5]
    figure, _ = grid_of_axes(1, 1, 3, 2)
    add_legend(figure, [])  # nothing to explain
    add_legend(figure, [legend_line("#000000", "one")])
    assert [text.get_text() for text in figure.legends[1].get_texts()] == ["one"]


def test_records_are_of_one_stage_and_kind() -> None:
    history = [{"stage": stage, "kind": kind} for stage in ("warmup", "train") for kind in ("step", "refresh")]
    assert records_of(history, "train", "refresh") == [{"stage": "train", "kind": "refresh"}]


def test_importing_what_is_seen_everywhere_loads_neither_torch_nor_matplotlib(
    run_command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    program = (
        "import sys, bundle.reports.check, bundle.reports.figures, bundle.reports.pages, bundle.reports.preview, "
        "scripts.check, scripts.demo, scripts.prior\n"
        "sys.exit(' '.join({'torch', 'monai', 'matplotlib', 'pandas', 'jinja2'} & set(sys.modules)))"
    )
    assert run_command("-c", program).stderr.strip() == ""

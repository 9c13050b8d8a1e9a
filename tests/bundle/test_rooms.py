"""The folder listing is the architecture: a room imports only from rooms above it."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT

ROOMS = [
    "errors", "organs", "files", "untrusted", "processes", "configs",
    "scans", "cohorts", "checks", "transforms", "networks", "inference", "training", "evaluation", "reports",
]  # fmt: skip
WITHOUT_TORCH = ROOMS[: ROOMS.index("transforms")]
MODULES = sorted((ROOT / "bundle").rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "bundle" and len(parts) > 1 else parts[0]


def imported(path: Path, top_level: bool = False) -> Iterator[str]:
    """Modules that a file imports; ``top_level`` leaves out imports inside functions and for type checkers."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)  # `from bundle.cohorts import preparing`


def edges() -> dict[str, set[str]]:
    """Imports between the modules of the library."""
    names = {name_of(path) for path in MODULES}
    return {name_of(path): {module for module in imported(path) if module in names} for path in MODULES}


def test_every_module_is_in_a_room() -> None:
    assert {room_of(name_of(path)) for path in MODULES} - {"bundle"} == set(ROOMS)


def test_a_room_imports_only_from_rooms_above_it() -> None:
    back = [
        f"{module} imports {other}"
        for module, others in edges().items()
        for other in others
        if other != "bundle" and module != "bundle" and ROOMS.index(room_of(other)) > ROOMS.index(room_of(module))
    ]
    assert not back


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {module: {other for other in others if other != module} for module, others in edges().items()}
    while graph:
        free = [module for module, others in graph.items() if not others & set(graph)]
        assert free, f"a cycle among {sorted(graph)}"
        graph = {module: others for module, others in graph.items() if module not in free}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_the_library_knows_neither_scripts_nor_the_command_line_nor_the_configs_folder(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not [module for module in imported(path) if module.split(".")[0] == "scripts"]
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "argv" not in names
    assert "__file__" not in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_rooms_without_torch(room: str) -> None:
    modules = [name_of(path) for path in MODULES if room_of(name_of(path)) == room]
    program = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_module_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_a_name_means_one_thing() -> None:
    """Classes and type aliases have different names across the rooms and the commands."""
    places: dict[str, set[str]] = {}
    for path in [*MODULES, *sorted((ROOT / "scripts").rglob("*.py"))]:
        for node in ast.parse(path.read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            name = node.name if isinstance(node, ast.ClassDef) else target.id if isinstance(target, ast.Name) else ""
            if name and not name.isupper() and name[0].isupper():
                places.setdefault(name, set()).add(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}

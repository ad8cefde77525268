"""The floors of the house: imports run downwards only, and the core stays light.

Imports are read from the source with `ast`, also those inside functions. Whoever adds an
import that goes up, or sideways into a neighbour, fails here.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "jumok"

GROUND = {"fused", "masks", "positions", "tokens"}
# room → the rooms it may import besides itself. "jumok" is the package's own public face.
MAY_IMPORT: dict[str, set[str]] = {
    "masks": set(),
    "positions": set(),
    "tokens": set(),
    "fused": {"masks"},
    "definition": {"masks", "positions"},
    "lens": GROUND,
    "model": GROUND,
    "view": {"lens", "tokens"},
    "census": {"lens", "model"} | GROUND,
    "training": {"model"} | GROUND,
    "lessons": {"jumok", "census", "definition", "lens", "model", "training", "view"} | GROUND,
    "cli": {"jumok", "census", "lens", "lessons", "model", "training", "view"} | GROUND,
    "__main__": {"cli"},
}
CORE = {"numpy", "array_api_compat", "safetensors", "typer", "rich"}
# In no extra: used only where the user has it anyway, and the error says how to get it.
OPTIONAL = {"pyarrow"}
TORCH_ON_IMPORT = {"fused/torch_", "lens/taps/", "lens/watch.py", "model/", "training/", "census/"}
TORCH_ON_IMPORT |= {"lessons/"}
TORCH_ON_IMPORT |= {
    f"lens/{room}.py"
    for room in (
        "ablate",
        "given_ids",
        "hearing",
        "keeping",
        "leave_out",
        "norms",
        "rows",
        "space",
        "stitching",
        "tracks",
    )
}
TORCH_WHEN_CALLED = TORCH_ON_IMPORT | {"fused/", "cli/"}
# Modules of light packages that import torch themselves.
TORCH_IN_DISGUISE = {"safetensors.torch", "array_api_compat.torch"}


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    on_import: bool  # runs when the file is imported, not only when a function is called
    for_types: bool  # under `if TYPE_CHECKING`: never runs


def imports_of(tree: ast.Module, package: list[str]) -> Iterator[Import]:
    """Every import of a file, relative ones resolved against its `package`."""

    def visit(node: ast.AST, on_import: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, on_import, for_types)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno, on_import, for_types)
        elif isinstance(node, ast.Call) and _name(node.func) in {"import_module", "__import__"}:
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant):
                yield Import(str(name.value), node.lineno, on_import, for_types)
        if isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                yield from visit(statement, on_import, True)
            for statement in node.orelse:
                yield from visit(statement, on_import, for_types)
            return
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, on_import and not inside, for_types)

    yield from visit(tree, True, False)


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def faults(house: Path, dependencies: set[str]) -> list[str]:
    """What breaks the floors in the tree `house`, one line a fault."""
    found = []
    for path in sorted(house.rglob("*.py")):
        file = path.relative_to(house).as_posix()
        if file == "__init__.py":
            room = "jumok"
        else:
            room = file.split("/")[0].removesuffix(".py")
            if room not in MAY_IMPORT:
                found.append(f"{file}: unknown room {room!r}: give it a floor in MAY_IMPORT")
                continue
        package = ["jumok", *path.relative_to(house).parts[:-1]]
        for item in imports_of(ast.parse(path.read_text(encoding="utf-8")), package):
            fault = (
                _inner_fault(item, room)
                if item.module.split(".")[0] == "jumok"
                else _outer_fault(item, file, dependencies)
            )
            if fault:
                found.append(f"{file}:{item.line}: {fault}")
    return found


def _inner_fault(item: Import, room: str) -> str | None:
    if room == "jumok":
        runs = item.on_import and not item.for_types
        return f"{item.module} is loaded by `import jumok`" if runs else None
    parts = item.module.split(".")
    if parts[1:] == ["__version__"]:
        return None
    target = parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "jumok"
    if target == room or target in MAY_IMPORT[room]:
        return None
    return f"{room} must not import {target} ({item.module})"


def _outer_fault(item: Import, file: str, dependencies: set[str]) -> str | None:
    package = item.module.split(".")[0]
    if package in sys.stdlib_module_names or item.for_types:
        return None
    if any(item.module == name or item.module.startswith(name + ".") for name in TORCH_IN_DISGUISE):
        package = "torch"
    if package == "torch":
        rooms = TORCH_ON_IMPORT if item.on_import else TORCH_WHEN_CALLED
        if not any(file == place or file.startswith(place) for place in rooms):
            return f"imports torch ({item.module})"
    elif package not in CORE:
        if package not in dependencies | OPTIONAL:
            return f"imports {package}, which pyproject.toml does not name"
        if item.on_import:
            return f"imports {package} at the top: import it inside the function that needs it"
    return None


def _dependencies() -> set[str]:
    """Import names of what pyproject.toml names for users: everything but the dev extra."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(x for e in extras if e != "dev" for x in extras[e])]
    cut = str.maketrans(dict.fromkeys("[<>=!~;", " "))
    return {line.translate(cut).split()[0].replace("-", "_") for line in named}


def test_imports_run_downwards_only() -> None:
    assert faults(HOUSE, _dependencies()) == []


def test_core_dependencies_are_the_declared_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {line.split(">")[0].replace("-", "_") for line in project["dependencies"]} == CORE


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("masks.py", "from jumok import fused", "masks must not import fused"),
        (
            "fused/rows.py",
            "from jumok.definition import attention",
            "fused must not import definition",
        ),
        ("lens/maps.py", "import jumok.model.attention", "lens must not import model"),
        ("lens/maps.py", "from ..model import attention", "lens must not import model"),
        ("lens/maps.py", "from jumok import attention", "lens must not import jumok"),
        ("lens/maps.py", "def f():\n    import jumok.definition", "lens must not import def"),
        ("lens/maps.py", "if TYPE_CHECKING:\n    import jumok.view", "lens must not import view"),
        ("model/block.py", "from jumok.lens.watch import watch", "model must not import lens"),
        ("model/block.py", "from jumok import lens", "model must not import lens"),
        ("view/figure.py", "from jumok.masks import Mask", "view must not import masks"),
        ("view/figure.py", "def f():\n    import torch", "imports torch"),
        ("view/figure.py", "import matplotlib.pyplot", "imports matplotlib at the top"),
        ("lens/maps.py", "class A:\n    import torch", "imports torch"),
        ("lens/maps.py", "from safetensors.torch import save_file", "imports torch"),
        ("lens/maps.py", "from safetensors import torch", "imports torch"),
        ("fused/rows.py", "try:\n    import torch\nexcept ImportError:\n    pass", "imports torch"),
        ("model/hub.py", "from transformers import AutoModel", "imports transformers at the top"),
        ("tokens/signs.py", "def f():\n    import sentencepiece", "imports sentencepiece, which"),
        ("tokens/signs.py", "def f():\n    import_module('torch')", "imports torch"),
        ("attic.py", "", "unknown room 'attic'"),
        ("__init__.py", "from jumok.masks import Causal", "is loaded by `import jumok`"),
        ("__init__.py", "import torch", "imports torch"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, file: str, source: str, fault: str) -> None:
    house = _made_up_house(tmp_path, file, source)
    (found,) = faults(house, _dependencies())
    assert found.startswith(file)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        (
            "fused/rows.py",
            "import numpy as np\nfrom jumok.masks import Mask\ndef f():\n    import torch",
        ),
        ("lens/taps/sdpa.py", "import torch\nfrom jumok import fused\nfrom .call import Call"),
        ("lens/maps.py", "from jumok import __version__"),
        ("lens/maps.py", "if TYPE_CHECKING:\n    import torch"),
        ("model/hub.py", "import torch\ndef f():\n    import transformers, gguf"),
        ("view/figure.py", "def f():\n    import matplotlib.pyplot as plt"),
        ("cli/look.py", "import typer\nimport jumok\nfrom jumok.view.terminal import show"),
        ("__init__.py", "if TYPE_CHECKING:\n    from jumok.masks import Causal"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, file: str, source: str) -> None:
    assert faults(_made_up_house(tmp_path, file, source), _dependencies()) == []


def _made_up_house(folder: Path, file: str, source: str) -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return folder

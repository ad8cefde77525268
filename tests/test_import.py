"""`import jumok` is light, and works where the extras are not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import jumok
from test_floors import TORCH_ON_IMPORT

HOUSE = Path(jumok.__file__).parent
EXTRAS = ("torch", "tokenizers", "gguf", "transformers", "matplotlib")
# Put before a script: the packages named cannot be imported, as if they were not installed.
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
NEEDS_TORCH = [
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "MultiHeadAttention",
    "TrainingResult",
    "ablate",
    "ablation_effect",
    "embed",
    "generate",
    "leave_out",
    "load",
    "save",
    "train",
    "watch",
]


def run(script: str, *, blocked: tuple[str, ...] = ()) -> str:
    """What a script prints in an interpreter of its own."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCK.format(blocked=blocked) + script],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_none_of_the_heavy_packages() -> None:
    heavy = {*EXTRAS, "numpy", "rich", "typer", "safetensors"}
    assert run(f"import jumok; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_attention_on_numpy_loads_no_torch() -> None:
    script = """
import numpy, jumok
q = numpy.eye(2)
output, weights, lse = jumok.attention(q, q, q, causal=True)
print(weights[0].tolist(), {"torch", "matplotlib"} & set(sys.modules))
"""
    assert run(script) == "[1.0, 0.0] set()"


def test_everything_else_imports_without_the_extras() -> None:
    rooms = (file.relative_to(HOUSE) for file in HOUSE.rglob("*.py"))
    modules = [
        ".".join(["jumok", *room.with_suffix("").parts])
        for room in rooms
        if not room.as_posix().startswith(tuple(TORCH_ON_IMPORT))
        and room.name not in {"__init__.py", "__main__.py"}
    ]
    assert "jumok.definition" in modules
    script = f"from importlib import import_module\nfor m in {modules}: import_module(m)"
    run(script, blocked=EXTRAS)


@pytest.mark.parametrize("name", sorted(set(jumok.__all__) - set(NEEDS_TORCH)))
def test_name_works_without_the_extras(name: str) -> None:
    assert run(f"import jumok; print(jumok.{name} is not None)", blocked=EXTRAS) == "True"


@pytest.mark.parametrize("name", NEEDS_TORCH)
def test_name_that_needs_torch_says_what_to_install(name: str) -> None:
    script = f"""
import jumok
try:
    jumok.{name}
except ModuleNotFoundError as error:
    print(error, "|", error.name)
"""
    expected = f"jumok.{name} needs torch, which is not installed: pip install 'jumok[torch]'"
    assert run(script, blocked=("torch",)) == f"{expected} | torch"


def test_a_figure_without_matplotlib_says_what_to_install() -> None:
    script = """
import jumok
try:
    jumok.figure(None, None, 0, 0)
except ModuleNotFoundError as error:
    print(error)
"""
    expected = "figures need matplotlib, which is not installed: pip install 'jumok[view]'"
    assert run(script, blocked=("matplotlib",)) == expected


def test_a_broken_import_of_our_own_is_not_taken_for_a_missing_extra() -> None:
    script = """
import jumok
try:
    jumok.attention
except ModuleNotFoundError as error:
    print(error)
"""
    assert run(script, blocked=("array_api_compat",)) == "No module named 'array_api_compat'"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'jumok' has no attribute 'atention'"):
        jumok.atention  # type: ignore[attr-defined]  # noqa: B018

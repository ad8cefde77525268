"""jumok: self-attention you can build, run and open.

Every public name is loaded when it is first used, so that ``import jumok`` is fast
and works where PyTorch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from jumok.definition import attention as attention
    from jumok.definition import causal_mask as causal_mask
    from jumok.definition import softmax as softmax
    from jumok.lens.attention_map import AttentionMap as AttentionMap
    from jumok.lens.recording import Recording as Recording
    from jumok.lens.recording import open_recording as open  # noqa: A004
    from jumok.lens.report import report as report
    from jumok.lens.sources import sources as sources
    from jumok.lens.watch import watch as watch
    from jumok.model.attention import MultiHeadAttention as MultiHeadAttention
    from jumok.model.generate import generate as generate
    from jumok.model.loading import load as load
    from jumok.model.loading import save as save
    from jumok.model.transformer import Config as Config
    from jumok.model.transformer import Decoder as Decoder
    from jumok.model.transformer import Encoder as Encoder
    from jumok.view.figure import figure as figure

_HOMES = {
    "AttentionMap": "jumok.lens.attention_map",
    "Config": "jumok.model.transformer",
    "Decoder": "jumok.model.transformer",
    "Encoder": "jumok.model.transformer",
    "MultiHeadAttention": "jumok.model.attention",
    "Recording": "jumok.lens.recording",
    "attention": "jumok.definition",
    "causal_mask": "jumok.definition",
    "figure": "jumok.view.figure",
    "generate": "jumok.model.generate",
    "load": "jumok.model.loading",
    "open": "jumok.lens.recording",
    "report": "jumok.lens.report",
    "save": "jumok.model.loading",
    "softmax": "jumok.definition",
    "sources": "jumok.lens.sources",
    "watch": "jumok.lens.watch",
}
_RENAMED = {"open": "open_recording"}
_EXTRA_OF = {"torch": "torch", "tokenizers": "torch", "gguf": "torch", "matplotlib": "view"}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'jumok' has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRA_OF:
            raise
        raise ModuleNotFoundError(
            f"jumok.{name} needs {package}, which is not installed: "
            f"pip install 'jumok[{_EXTRA_OF[package]}]'",
            name=error.name,
        ) from error
    value = getattr(home, _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

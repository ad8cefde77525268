"""jumok: self-attention you can build, run and open.

Every public name is loaded when it is first used, so that ``import jumok`` is fast
and works where PyTorch is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "AttentionMap",
    "Config",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "MultiHeadAttention",
    "Recording",
    "Training",
    "TrainingResult",
    "ablate",
    "ablation_effect",
    "attention",
    "causal_mask",
    "embed",
    "figure",
    "generate",
    "leave_out",
    "load",
    "open",
    "relevance",
    "report",
    "rollout",
    "save",
    "segments",
    "show",
    "softmax",
    "sources",
    "train",
    "watch",
]

# What a type checker reads. At run time `_HOMES` says the same; a test compares the two.
if TYPE_CHECKING:
    from jumok.definition import attention, causal_mask, softmax
    from jumok.lens.ablate import ablate, ablation_effect
    from jumok.lens.attention_map import AttentionMap
    from jumok.lens.leave_out import leave_out
    from jumok.lens.recording import Recording
    from jumok.lens.recording import open_recording as open
    from jumok.lens.relevance import relevance
    from jumok.lens.report import report
    from jumok.lens.rollout import rollout
    from jumok.lens.segments import segments
    from jumok.lens.sources import sources
    from jumok.lens.watch import watch
    from jumok.model.attention import MultiHeadAttention
    from jumok.model.config import Config, EncoderDecoderConfig
    from jumok.model.encoder_decoder import EncoderDecoder
    from jumok.model.generate import generate
    from jumok.model.loading import load, save
    from jumok.model.sentences import embed
    from jumok.model.transformer import Decoder, Encoder
    from jumok.training.loop import TrainingResult, train
    from jumok.training.settings import Training
    from jumok.view.figure import figure
    from jumok.view.widget import show

_HOMES = {
    "AttentionMap": "jumok.lens.attention_map",
    "Config": "jumok.model.config",
    "Decoder": "jumok.model.transformer",
    "Encoder": "jumok.model.transformer",
    "EncoderDecoder": "jumok.model.encoder_decoder",
    "EncoderDecoderConfig": "jumok.model.config",
    "MultiHeadAttention": "jumok.model.attention",
    "Recording": "jumok.lens.recording",
    "Training": "jumok.training.settings",
    "TrainingResult": "jumok.training.loop",
    "ablate": "jumok.lens.ablate",
    "ablation_effect": "jumok.lens.ablate",
    "attention": "jumok.definition",
    "causal_mask": "jumok.definition",
    "embed": "jumok.model.sentences",
    "figure": "jumok.view.figure",
    "generate": "jumok.model.generate",
    "leave_out": "jumok.lens.leave_out",
    "load": "jumok.model.loading",
    "open": "jumok.lens.recording",
    "relevance": "jumok.lens.relevance",
    "report": "jumok.lens.report",
    "rollout": "jumok.lens.rollout",
    "save": "jumok.model.loading",
    "segments": "jumok.lens.segments",
    "show": "jumok.view.widget",
    "softmax": "jumok.definition",
    "sources": "jumok.lens.sources",
    "train": "jumok.training.loop",
    "watch": "jumok.lens.watch",
}
_RENAMED = {"open": "open_recording"}
_EXTRA_OF = {
    "anywidget": "view",
    "gguf": "torch",
    "matplotlib": "view",
    "tokenizers": "torch",
    "torch": "torch",
    "transformers": "hf",
}


def _load(name: str) -> Any:
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


# Hidden from type checkers, which would otherwise accept any misspelt name.
if not TYPE_CHECKING:
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

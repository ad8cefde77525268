"""Which class of transformers is the model of a configuration."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

# Where the base model alone cannot be run.
_CHOSEN = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "pop2piano": "Pop2PianoForConditionalGeneration",
    "speecht5": "SpeechT5ForSpeechToText",
}


def model_class(config_class: Any) -> Any:
    """The model of a configuration class: the base model, or the one that comes nearest to it."""
    import transformers
    from transformers import AutoModel, PreTrainedModel

    if config_class.model_type in _CHOSEN:
        return getattr(transformers, _CHOSEN[config_class.model_type])
    try:
        found = AutoModel._model_mapping[config_class]
    except KeyError:
        found = None
    if isinstance(found, (list, tuple)):
        found = found[0]
    if found is not None:
        return found
    package = config_class.__module__.rpartition(".")[0]
    name = config_class.__module__.rpartition(".configuration_")[2]
    try:
        module = importlib.import_module(f"{package}.modeling_{name}")
    except ModuleNotFoundError:
        return None
    candidates = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, PreTrainedModel)
        and value.__module__ == module.__name__
        and value.config_class is config_class
        and value.forward is not PreTrainedModel.forward
        and "forward" in value.__dict__
    ]
    if not candidates:
        return None
    kinds = ("Model", "Backbone")

    def rank(value: Any) -> tuple[int, int]:
        name = value.__name__
        kind = next((at for at, end in enumerate(kinds) if name.endswith(end)), len(kinds))
        return kind, len(name)

    return min(candidates, key=rank)

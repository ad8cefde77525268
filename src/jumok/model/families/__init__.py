"""Published model families: how their settings and tensor names map to ours.

Each `Family` holds one table, our names → theirs, which is read one way when a checkpoint is
loaded and the other way when one is written. ``{i}`` stands for the number of a layer.

Settings are read through `Settings`, which remembers what was asked for: whatever is left over
and is not known to be without effect raises an error, so that no checkpoint is computed wrongly
without a word.
"""

from jumok.model.families.bert import BERT, ROBERTA
from jumok.model.families.distilbert import DISTILBERT
from jumok.model.families.family import Family, Model, Piece
from jumok.model.families.gemma import GEMMA
from jumok.model.families.gpt2 import GPT2
from jumok.model.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from jumok.model.families.marian import MARIAN
from jumok.model.families.modernbert import MODERNBERT
from jumok.model.families.settings import NotSupportedError, Settings
from jumok.model.families.t5 import T5

__all__ = ["FAMILIES", "Family", "Model", "NotSupportedError", "Piece", "Settings"]

# In the order in which `save` asks them whether they can express a model.
_DECODERS = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GPT2)
_ENCODERS = (DISTILBERT, BERT, ROBERTA, MODERNBERT)
_ENCODER_DECODERS = (MARIAN, T5)
FAMILIES = {family.name: family for family in (*_DECODERS, *_ENCODERS, *_ENCODER_DECODERS)}

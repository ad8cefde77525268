"""Text, token ids and labels.

A ``Tokenizer`` wraps Hugging Face's `tokenizers`, which is imported when the first one is made.
``labels`` names every token so that a person can read it: bytes that only together make a
character are shown as that character with a small number (한₁ 한₂ 한₃), spaces as ``␣``.
``words`` groups tokens to the words that a person sees.
"""

from jumok.tokens.reading import Reading, Word, read, words
from jumok.tokens.signs import has_words, printable, shortened, visible
from jumok.tokens.stream import StreamDecoder
from jumok.tokens.tokenizer import Tokenizer, as_tokenizer

__all__ = [
    "Reading",
    "StreamDecoder",
    "Tokenizer",
    "Word",
    "as_tokenizer",
    "has_words",
    "printable",
    "read",
    "shortened",
    "visible",
    "words",
]

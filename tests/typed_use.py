"""A user's program, for the type checker alone: `mypy` reads it, nothing runs it."""

from typing import assert_type

import jumok

recording = jumok.open("run.safetensors")
assert_type(recording, jumok.Recording)
assert_type(recording[0], jumok.AttentionMap)
layer = jumok.MultiHeadAttention(emb_dim=64, n_heads=4, causal=True)
assert_type(layer, jumok.MultiHeadAttention)
# A misspelt name is an error: where it is not, the comment is unused, which is an error too.
jumok.atention  # type: ignore[attr-defined]  # noqa: B018

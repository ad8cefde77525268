"""Models that transformers runs, under our own calling convention.

For families that jumok doesn't build itself: `jumok.load` gives one of these, and says so. They
are watched, looked into and generated with like ours; ``inner`` is the model of transformers.

B batch, T tokens, E emb_dim, V vocab_size.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from jumok.model.cache import KeyValueCache
from jumok.model.families.family import suppressed_ids
from jumok.model.inputs import read_inputs

if TYPE_CHECKING:
    from jumok.model.pooling import SentenceHead

__all__ = [
    "ForeignCache",
    "ForeignConfig",
    "ForeignDecoder",
    "ForeignEncoder",
    "ForeignEncoderDecoder",
    "ForeignModel",
    "read_with_transformers",
]


@dataclass(frozen=True)
class ForeignConfig:
    """What there is to know of a model that transformers runs; 0 or `None` where it says nothing.

    Args:
        family: its ``model_type``.
        vocab_size: number of token ids V.
        emb_dim: width E of the residual stream.
        n_layers: number of layers, an encoder's and a decoder's together.
        n_heads: number of query heads.
        n_kv_heads: number of key and value heads.
        head_dim: width of a head.
        context: number of positions that it was made for.
        bos_id: id that begins a text; of an encoder-decoder, a target.
        eos_ids: ids that end a text.
        pad_id: id that fills a batch.
        suppressed_ids: ids that `generate` never chooses.
    """

    family: str
    vocab_size: int
    emb_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int | None
    suppressed_ids: tuple[int, ...] = ()


class ForeignCache(KeyValueCache):
    """The cache of a model that transformers runs, with its own cache inside.

    Attributes:
        inner: the cache of transformers, `None` before the first tokens.
        source: what an encoder has made of the source, and its mask.
    """

    def __init__(self) -> None:
        super().__init__(())

    def reset(self) -> None:
        """Forget everything: the next tokens are the first."""
        super().reset()
        self.inner: Any = None
        self.source: tuple[Any, Tensor | None] | None = None

    def truncate(self, length: int) -> bool:
        """Forget all tokens but the first ``length``; whether transformers' cache could."""
        if not 0 <= length <= self.length:
            raise ValueError(f"truncate({length}): the cache holds {self.length} tokens")
        if length == self.length:
            return True
        layers = getattr(self.inner, "layers", None)
        if not length or not layers or type(self.inner).__name__ != "DynamicCache":
            return False
        # A layer that keeps a window or a state can't go back.
        if any(type(layer).__name__ != "DynamicLayer" for layer in layers):
            return False
        self.inner.crop(length - self.length)  # negative: so many tokens less
        self.length = length
        self.visible = None if self.visible is None else self.visible[:, :length]
        return True

    def fork(self) -> ForeignCache:
        """A copy that goes its own way."""
        twin = ForeignCache()
        self._copy_to(twin)
        twin.inner, twin.source = copy.deepcopy(self.inner), self.source
        return twin


class ForeignModel(nn.Module):
    """What the three kinds have in common.

    Args:
        inner: the model of transformers.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.config = _read_config(inner)
        self._takes = set(inspect.signature(inner.forward).parameters)
        # Newer versions of transformers have another name for it.
        self._cache_name = "cache" if "cache" in self._takes else "past_key_values"

    def _cached(self, cache: ForeignCache | None) -> dict[str, Any]:
        if cache is None:
            return {"use_cache": False} if "use_cache" in self._takes else {}
        return {"use_cache": True, self._cache_name: cache.inner}


class ForeignDecoder(ForeignModel):
    """A causal model that transformers runs; called like a `jumok.Decoder`."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sentence_head: SentenceHead | None = None

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        cache: ForeignCache | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Logits for the token after each token, (B, T) → (B, T, V); see `Decoder.forward`."""
        mask = read_inputs(ids, mask)
        batch, new = ids.shape
        visible = mask if cache is None else cache.admit(batch, new, mask)
        more: dict[str, Any] = self._cached(cache)
        if visible is not None:
            more["attention_mask"] = visible.long()
            if "position_ids" in self._takes:
                more["position_ids"] = (visible.cumsum(1) - 1).clamp(min=0)[:, -new:]
        if last is not None and "logits_to_keep" in self._takes:
            more["logits_to_keep"] = last
        output = self.inner(input_ids=ids, **more)
        if cache is not None:
            cache.inner = output[self._cache_name]
        logits: Tensor = output.logits
        return logits if last is None else logits[:, -last:]

    def hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """What logits are made of, (B, T) → (B, T, E); see `Decoder.hidden`."""
        mask = read_inputs(ids, mask)
        seen = None if mask is None else mask.long()
        body = self.inner.base_model
        more: dict[str, Any] = self._cached(None)
        if mask is not None and "position_ids" in self._takes:
            more["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        hidden: Tensor = body(input_ids=ids, attention_mask=seen, **more).last_hidden_state
        return hidden

    def new_cache(self, room: int | None = None) -> ForeignCache:
        """An empty cache of keys and values for this model."""
        return ForeignCache()


class ForeignEncoder(ForeignModel):
    """A model without a next token that transformers runs; called like a `jumok.Encoder`."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.sentence_head: SentenceHead | None = None

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """A hidden state for each token, (B, T) → (B, T, E); see `Encoder.forward`."""
        mask = read_inputs(ids, mask)
        seen = None if mask is None else mask.long()
        hidden: Tensor = self.inner(input_ids=ids, attention_mask=seen).last_hidden_state
        return hidden


class ForeignEncoderDecoder(ForeignModel):
    """An encoder-decoder that transformers runs; called like a `jumok.EncoderDecoder`."""

    def forward(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor,
        source_mask: Tensor | None = None,
        cache: ForeignCache | None = None,
        *,
        target_mask: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Logits for the token after each of the target; see `EncoderDecoder.forward`."""
        if source_ids is not None:
            mask = read_inputs(source_ids, source_mask)
            seen = None if mask is None else mask.long()
            states = self.inner.get_encoder()(input_ids=source_ids, attention_mask=seen)
            if cache is not None:
                cache.source = states, seen
        elif cache is None or cache.source is None:
            raise ValueError("no source: give source_ids, or a cache that has read them before")
        else:
            states, seen = cache.source
        more: dict[str, Any] = self._cached(cache)
        mask = read_inputs(target_ids, target_mask)
        visible = mask if cache is None else cache.admit(len(target_ids), target_ids.shape[1], mask)
        if visible is not None:
            more["decoder_attention_mask"] = visible.long()
        output = self.inner(
            encoder_outputs=states, attention_mask=seen, decoder_input_ids=target_ids, **more
        )
        if cache is not None:
            cache.inner = output[self._cache_name]
        logits: Tensor = output.logits
        return logits if last is None else logits[:, -last:]

    def new_cache(self, room: int | None = None) -> ForeignCache:
        """An empty cache for this model."""
        return ForeignCache()


def read_with_transformers(
    folder: Path, dtype: torch.dtype | None, device: torch.device | None
) -> ForeignModel:
    """The model of a folder, run by transformers; only safetensors, no code of the folder's.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        ValueError: it can't read the folder either.
    """
    import transformers

    ours: type[ForeignModel]
    where = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **where)
        if (encoder := _lone_encoder(config)) is not None:
            ours, kind = ForeignEncoder, encoder
        elif getattr(config, "is_encoder_decoder", False):
            ours, kind = ForeignEncoderDecoder, transformers.AutoModelForSeq2SeqLM
        elif _is_causal(config):
            ours, kind = ForeignDecoder, transformers.AutoModelForCausalLM
        else:
            ours, kind = ForeignEncoder, transformers.AutoModel
        options = {"dtype": dtype or "auto", "use_safetensors": True, "output_loading_info": True}
        try:  # the fused kernels
            inner, report = kind.from_pretrained(
                folder, attn_implementation="sdpa", **options, **where
            )
        except (ValueError, ImportError):
            inner, report = kind.from_pretrained(folder, **options, **where)
    except (ValueError, OSError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{folder}: transformers {transformers.__version__} can't read it either ({reason[0]})"
        ) from error
    lost = [*report["missing_keys"], *report["mismatched_keys"]]
    if lost:  # transformers would run it with random weights there
        named = ", ".join(map(str, sorted(lost, key=str)[:8]))
        raise ValueError(
            f"{folder} lacks tensors that {type(inner).__name__} needs, or has them in other "
            f"shapes: {named}{' …' if len(lost) > 8 else ''}"
        )
    return ours(inner.to(device)).eval()


def _lone_encoder(config: Any) -> Any:
    """The class of a model that is the encoder of an encoder-decoder, such as T5EncoderModel."""
    import transformers

    names = [name for name in config.architectures or () if name.endswith("EncoderModel")]
    return getattr(transformers, names[0], None) if names else None


def _is_causal(config: Any) -> bool:
    names = config.architectures or [""]
    return any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names)


def _read_config(inner: Any) -> ForeignConfig:
    whole = inner.config
    config = whole.get_text_config()

    def number(*names: str) -> int:
        found = [getattr(config, name, None) for name in names]
        return next((value for value in found if isinstance(value, int)), 0)

    layers = number("num_hidden_layers", "n_layer", "num_layers")
    if getattr(whole, "is_encoder_decoder", False):
        layers = number("encoder_layers", "num_layers") + number(
            "decoder_layers", "num_decoder_layers", "num_layers"
        )
    heads = number("num_attention_heads", "n_head", "num_heads")
    width = number("hidden_size", "d_model", "n_embd")
    generation = getattr(inner, "generation_config", None)
    generation = {} if generation is None else generation.to_dict()
    eos = generation.get("eos_token_id")
    eos = getattr(config, "eos_token_id", None) if eos is None else eos
    start = getattr(config, "bos_token_id", None)
    if getattr(whole, "is_encoder_decoder", False):
        start = generation.get("decoder_start_token_id")
        start = getattr(whole, "decoder_start_token_id", None) if start is None else start
    return ForeignConfig(
        family=whole.model_type,
        vocab_size=number("vocab_size"),
        emb_dim=width,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=number("num_key_value_heads") or heads,
        head_dim=number("head_dim", "d_kv") or (width // heads if heads else 0),
        context=number("max_position_embeddings", "n_positions", "max_seq_len") or 1 << 20,
        bos_id=start,
        eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        pad_id=getattr(config, "pad_token_id", None),
        suppressed_ids=suppressed_ids(generation),
    )

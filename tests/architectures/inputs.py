"""Inputs for any architecture, made from what its `forward` takes.

Two rows, the second padded: on the left where the model decodes, on the right otherwise. A
model that wants places for its images among the token ids says how many in its error, and is
believed.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .configs import FIRST_SPECIAL, IMAGE, PATCH, TOKENS, WIDTH, is_config

BATCH = 2
PADDING = 3
DECODER_TOKENS = 7
SAMPLES = 3200  # of sound
FRAMES = 32  # of a spectrogram


class Inputs:
    """Makes one argument of `forward` after another for one model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self.random = torch.Generator().manual_seed(0)
        parameters = list(inspect.signature(model.forward).parameters.values())
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self.names = [item.name for item in parameters if item.kind in plain]
        self.required = [
            item.name
            for item in parameters
            if item.kind in plain and item.default is inspect.Parameter.empty
        ]

    # -- settings, wherever in the tree they stand ---------------------------------------------

    def setting(self, *names: str, default: Any = None) -> Any:
        """The first of these settings that the configuration or a part of it has."""
        parts = [self.config]
        for part in parts:
            parts.extend(value for value in vars(part).values() if is_config(value))
        for name in names:
            for part in parts:
                value = getattr(part, name, None)
                if value is not None and not isinstance(value, bool):
                    return value
        return default

    # -- kinds of tensors ----------------------------------------------------------------------

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def ids(self, tokens: int = TOKENS, batch: int = BATCH) -> Tensor:
        highest = min(self.setting("vocab_size", default=100), FIRST_SPECIAL // 2)
        return torch.randint(4, max(highest, 6), (batch, tokens), generator=self.random)

    def padding(self, tokens: int = TOKENS) -> Tensor:
        mask = torch.ones(BATCH, tokens, dtype=torch.int64)
        if self.decodes:
            mask[1, :PADDING] = 0
        else:
            mask[1, -PADDING:] = 0
        return mask

    @property
    def decodes(self) -> bool:
        """Whether the model is one of those that are padded on the left."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        kind = self.config.model_type
        whole = None
        with contextlib.suppress(ValueError):  # it has several
            whole = self.config.get_text_config()
        encoder = getattr(self.config, "is_encoder_decoder", False)
        named = {kind, getattr(whole, "model_type", kind)} & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
        return bool(named) and not encoder

    def image_shape(self) -> tuple[int, int, int]:
        channels = self.setting("num_channels", "in_channels", "in_chans", default=3)
        size = self.setting("image_size", "img_size", default=IMAGE)
        if isinstance(size, dict):
            size = [size["height"], size["width"]]
        height, width = size[-2:] if isinstance(size, (list, tuple)) else (size, size)
        channels = channels if isinstance(channels, int) else 3
        return channels, height, width

    def patches(self) -> tuple[int, int]:
        """(number, width) of flattened patches of one image of 4 × 4 patches."""
        patch = self.setting("patch_size", "spatial_patch_size", default=PATCH)
        patch = patch[-1] if isinstance(patch, (list, tuple)) else patch
        channels = self.setting("in_channels", "in_chans", "num_channels", default=3)
        time = self.setting("temporal_patch_size", "patch_temporal", default=1)
        return 16, (channels if isinstance(channels, int) else 3) * time * patch * patch

    def grid(self) -> Tensor:
        return torch.tensor([[1, 4, 4]] * BATCH)

    # -- arguments -----------------------------------------------------------------------------

    def choices(self, name: str) -> list[Callable[[], Any]]:
        """What an argument may be; the first is the commonest."""
        width = self.setting("hidden_size", "d_model", "n_embd", default=WIDTH)
        width = width if isinstance(width, int) else WIDTH
        bins = self.setting("num_mel_bins", "n_mels", "mel_bins", "num_mel_bands", default=16)
        bins = self.setting("feature_size", default=bins) if "input_size" in self.names else bins
        channels, height, wide = self.image_shape()
        number, patch = self.patches()
        image = lambda *more: lambda: self.floats(BATCH, *more, channels, height, wide)  # noqa: E731
        flat = [
            lambda: self.floats(BATCH * number, patch),
            lambda: self.floats(BATCH * number, channels, PATCH, PATCH),
            lambda: self.floats(BATCH * number, width),
        ]
        images = [image(), image(1), image(2)]
        padded = [lambda: self.floats(BATCH, number, patch)]
        by_grid = {"grid_thw", "image_grid_thw", "image_grid_hws", "grid_hw"} & set(self.names)
        pixels = flat + images if by_grid else images + padded + flat
        table: dict[str, list[Callable[[], Any]]] = {
            "input_ids": [self.ids],
            "decoder_input_ids": [lambda: self.ids(DECODER_TOKENS)],
            "qformer_input_ids": [self.ids],
            "attention_mask": [self.padding],
            "pixel_values": pixels,
            "pixel_values_videos": [image(2), image(4)],
            "flattened_patches": [lambda: self._numbered_patches()],
            "image_sizes": [lambda: torch.tensor([[height, wide]] * BATCH)],
            "grid_thw": [self.grid],
            "image_grid_thw": [self.grid],
            "image_grid_hws": [lambda: self.grid()[:, 1:]],
            "pixel_position_ids": [lambda: self._places()],
            "image_position_ids": [lambda: self._places()],
            "pixel_attention_mask": [lambda: torch.ones(BATCH, number, dtype=torch.int64)],
            "spatial_shapes": [lambda: torch.tensor([[4, 4]] * BATCH)],
            "input_features": [
                lambda: self.floats(BATCH, bins, FRAMES),
                lambda: self.floats(BATCH, FRAMES, bins),
                lambda: self.floats(BATCH, 1, FRAMES, bins),
                lambda: self.floats(BATCH, FRAMES, self._features()),
                lambda: self.floats(BATCH, self._features(), FRAMES),
            ],
            "feature_attention_mask": [lambda: torch.ones(BATCH, FRAMES, dtype=torch.int64)],
            "audio_mel": [lambda: self.floats(BATCH, FRAMES, bins)],
            "audio_mel_mask": [lambda: torch.zeros(BATCH, FRAMES, dtype=torch.bool)],
            "image": [image()],
            "query_embeds": [lambda: self.floats(BATCH, 6, width)],
            "aspect_ratio_ids": [lambda: torch.ones(BATCH, 1, dtype=torch.int64)],
            "aspect_ratio_mask": [lambda: self._tiles()],
            "context": [lambda: self.floats(BATCH, 16, width)],
            "vision_features": [lambda: self.floats(BATCH, 16, width)],
            "text_features": [lambda: self.floats(BATCH, TOKENS, width)],
            "past_time_features": [lambda: self.floats(BATCH, self._history() + 7, 1)],
            "past_observed_mask": [lambda: torch.ones(BATCH, self._history() + 7)],
            "future_values": [lambda: self.floats(BATCH, self.setting("prediction_length"))],
            "future_time_features": [
                lambda: self.floats(BATCH, self.setting("prediction_length"), 1)
            ],
            "merge_sizes": [lambda: torch.ones(BATCH, dtype=torch.int64)],
            "spatial_merge_size": [lambda: torch.ones(BATCH, dtype=torch.int64)],
            "image_merge_sizes": [lambda: torch.ones(BATCH, dtype=torch.int64)],
            "target_sizes": [lambda: torch.tensor([[4, 4]] * BATCH)],
            "high_res_pixel_values": [lambda: self.floats(BATCH, channels, height, wide)],
            "prompt_pixel_values": [image()],
            "prompt_masks": [image()],
            "task_inputs": [lambda: self.ids(self.setting("task_seq_len", default=77))],
            "visual_feats": [lambda: self.floats(BATCH, 5, self.setting("visual_feat_dim"))],
            "visual_pos": [lambda: self.floats(BATCH, 5, 4).abs()],
            "states": [lambda: self.floats(BATCH, 5, self.setting("state_dim"))],
            "actions": [lambda: self.floats(BATCH, 5, self.setting("act_dim"))],
            "rewards": [lambda: self.floats(BATCH, 5, 1)],
            "returns_to_go": [lambda: self.floats(BATCH, 5, 1)],
            "timesteps": [lambda: torch.arange(5).expand(BATCH, 5)],
            "inputs": [self.ids, image()],
            "patch_embeds": [lambda: self.floats(BATCH, 4, 4, width)],
            "image_embeds_position_mask": [lambda: self._places_for_image()],
            "context_hidden_states": [lambda: self.floats(BATCH, TOKENS, width)],
            "noise_embeds": [lambda: self.floats(BATCH, 5, width)],
            "input_features_mask": [lambda: torch.ones(BATCH, FRAMES, dtype=torch.bool)],
            "input_values": [
                lambda: self.floats(BATCH, SAMPLES),
                lambda: self.floats(BATCH, 1, SAMPLES),
                lambda: self.floats(BATCH, FRAMES, bins),
                lambda: self.floats(BATCH, FRAMES),
            ],
            "spectrogram": [lambda: self.floats(BATCH, FRAMES, bins)],
            "past_values": [
                lambda: self.floats(BATCH, self._history()),
                lambda: self.floats(BATCH, self._history() + 7),
                lambda: self.floats(
                    BATCH, self._history(), self.setting("num_input_channels", default=1)
                ),
            ],
            "hidden_states": flat
            if by_grid
            else [lambda: self.floats(BATCH, TOKENS, width), *flat],
            "inputs_embeds": [lambda: self.floats(BATCH, TOKENS, width)],
            "encoder_hidden_states": [lambda: self.floats(BATCH, TOKENS + 2, width)],
            "bbox": [self._boxes],
        }
        return table.get(name, [])

    def _boxes(self) -> Tensor:
        corners = torch.randint(0, 50, (BATCH, TOKENS, 2), generator=self.random)
        return torch.cat([corners, corners + 20], dim=-1)

    def _places(self) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        return torch.stack([columns.flatten(), rows.flatten()], dim=-1).expand(BATCH, 16, 2)

    def _numbered_patches(self) -> Tensor:
        number, width = self.patches()
        places = self._places().flip(-1).float() + 1
        return torch.cat([places, self.floats(BATCH, number, width)], dim=-1)

    def _features(self) -> int:
        return self.setting("input_dim", "feature_projection_input_dim", "feat_dim",
                            "feature_size", "input_size", default=WIDTH)  # fmt: skip

    def _tiles(self) -> Tensor:
        mask = torch.zeros(BATCH, 1, self.setting("max_num_tiles", default=4), dtype=torch.int64)
        mask[..., 0] = 1
        return mask

    def _places_for_image(self) -> Tensor:
        mask = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
        mask[:, 1 : 1 + self.setting("latent_query_num", default=6)] = True
        return mask

    def _history(self) -> int:
        return self.setting("context_length", "prediction_length", default=32)

    # -- together ------------------------------------------------------------------------------

    def candidates(self) -> Iterator[dict[str, Any]]:
        """Sets of arguments worth trying, the richest first."""
        wanted = [
            "input_ids", "pixel_values", "input_features", "input_values", "decoder_input_ids",
            "image_grid_thw", "image_grid_hws", "image_sizes", "image_position_ids",
            "pixel_position_ids", "flattened_patches", "bbox", "attention_mask",
            "input_features_mask", "feature_attention_mask", "spatial_shapes",
            "aspect_ratio_ids", "aspect_ratio_mask", "target_sizes", "high_res_pixel_values",
            "visual_feats", "visual_pos", "states", "actions", "rewards", "returns_to_go",
            "timesteps", "future_values", "future_time_features", "image_embeds_position_mask",
            "merge_sizes",
            "image_merge_sizes", "spatial_merge_size",
        ]  # fmt: skip
        if "spatial_shapes" in self.names:
            wanted.append("pixel_attention_mask")
        names = [name for name in self.names if name in wanted or name in self.required]
        special = SPECIAL.get(self.config.model_type, {})
        missing = [n for n in self.required if not self.choices(n) and n not in special]
        if missing:
            raise ValueError(f"no input is made for the arguments {', '.join(missing)}")
        if "input_ids" not in names and "attention_mask" not in self.required:
            names = [name for name in names if name != "attention_mask"]
        text = [n for n in names if n in self.required or n in (
            "input_ids", "attention_mask", "decoder_input_ids", "bbox")]  # fmt: skip
        most = max((len(self.choices(name)) for name in names), default=0)
        rounds = [(names, at) for at in range(most)]
        alone = [name for name in names if name != "attention_mask" or name in self.required]
        spare = [
            n
            for n in alone
            if n in self.required or n not in ("image_sizes", "input_features", "input_values")
        ]
        with_sizes = [n for n in names if n != "image_sizes" or n in self.required]
        rounds += [(n, at) for n in (with_sizes, alone, spare) if n != names for at in range(most)]
        if text != names and "input_ids" in text:
            rounds += [(text, 0)]
        for chosen, at in rounds:
            self.random.manual_seed(0)
            choices = {name: self.choices(name) for name in chosen}
            made = {n: some[min(at, len(some) - 1)]() for n, some in choices.items() if some}
            made.update({name: value(self) for name, value in special.items()})
            yield {name: value for name, value in made.items() if value is not None}


# Arguments that must be as they are here, by model type; None takes one away.
SPECIAL: dict[str, dict[str, Callable[[Inputs], Any]]] = {
    "blip_2_qformer": {"encoder_hidden_states": lambda make: make.floats(BATCH, 10, WIDTH)},
    "blt": {"use_cache": lambda make: False},
    "clap": {"input_features": lambda make: make.floats(BATCH, 1, FRAMES, 32)},
    "clap_audio_model": {"input_features": lambda make: make.floats(BATCH, 1, FRAMES, 32)},
    "mimi": {"input_values": lambda make: make.floats(BATCH, 1, SAMPLES)},
    "muse_spark_audio": {"input_values": lambda make: make.floats(BATCH, 3840)},
    "voxtral_realtime": {
        "input_ids": lambda make: make.ids(4),
        "attention_mask": lambda make: torch.ones(BATCH, 4, dtype=torch.int64),
    },
    "clvp": {"input_features": lambda make: make.floats(BATCH, WIDTH, FRAMES)},
    "dia": {"decoder_input_ids": lambda make: make.ids(63).reshape(BATCH, 7, 9)},
    "dia_decoder": {
        "input_ids": lambda make: make.ids(63).reshape(BATCH, 7, 9),
        "encoder_hidden_states": lambda make: make.floats(BATCH, TOKENS, WIDTH),
        "attention_mask": lambda make: None,
    },
    "depth_pro": {"pixel_values": lambda make: make.floats(1, 3, 256, 256)},
    "dory": {"attention_mask": lambda make: None},
    "gemma3n_audio": {"audio_mel": lambda make: make.floats(BATCH, FRAMES, 128)},
    "idefics": {
        "pixel_values": lambda make: make.floats(BATCH, 1, *make.image_shape()),
        "image_attention_mask": lambda make: torch.ones(BATCH, TOKENS, 1, dtype=torch.int64),
    },
    "idefics2_perceiver": {"attention_mask": lambda make: torch.ones(BATCH, 16)},
    "kyutai_speech_to_text": {
        "input_ids": lambda make: make.ids(33 * TOKENS).reshape(BATCH, TOKENS, 33)
    },
    "lightglue": {"pixel_values": lambda make: make.floats(BATCH, 2, 3, IMAGE, IMAGE)},
    "superglue": {"pixel_values": lambda make: make.floats(BATCH, 2, 3, IMAGE, IMAGE)},
    "mllama": {"pixel_values": lambda make: make.floats(BATCH, 1, 4, *make.image_shape())},
    "mllama_vision_model": {
        "pixel_values": lambda make: make.floats(BATCH, 1, 4, *make.image_shape())
    },
    "musicgen": {"decoder_input_ids": lambda make: make.ids(7, BATCH * 4)},
    "musicgen_melody": {
        "decoder_input_ids": lambda make: make.ids(7, BATCH * 4),
        "input_features": lambda make: None,
    },
    "musicgen_decoder": {"input_ids": lambda make: make.ids(TOKENS, BATCH * 4)},
    "musicgen_melody_decoder": {"input_ids": lambda make: make.ids(TOKENS, BATCH * 4)},
    "paddleocr_vl_vision": {
        "pixel_values": lambda make: make.floats(1, 32, 3, PATCH, PATCH),
        "grid_thw": lambda make: make.grid(),
    },
    "perceiver": {
        "inputs": lambda make: make.floats(BATCH, 10, WIDTH),
        "attention_mask": lambda make: None,
    },
    "phi4_multimodal_audio": {"mask": lambda make: torch.ones(BATCH, FRAMES, dtype=torch.bool)},
    "qwen2_5_omni_audio_encoder": {
        "input_features": lambda make: make.floats(16, 64),
        "feature_lens": lambda make: torch.tensor([32, 32]),
        "aftercnn_lens": lambda make: torch.tensor([16, 16]),
    },
    "qwen3_omni_moe_audio_encoder": {
        "input_features": lambda make: make.floats(16, 64),
        "feature_lens": lambda make: torch.tensor([32, 32]),
    },
    "qwen3_omni_moe_talker_code_predictor": {
        "input_ids": lambda make: None,
        "inputs_embeds": lambda make: make.floats(BATCH, TOKENS, WIDTH),
    },
    "seggpt": {
        "pixel_values": lambda make: make.floats(BATCH, 3, 64, 64),
        "prompt_pixel_values": lambda make: make.floats(BATCH, 3, 64, 64),
        "prompt_masks": lambda make: make.floats(BATCH, 3, 64, 64),
    },
    "speech-encoder-decoder": {"input_features": lambda make: None, "inputs": lambda make: None},
    "t5gemma2_decoder": {
        "encoder_hidden_states": lambda make: make.floats(BATCH, TOKENS + 2, WIDTH),
        "attention_mask": lambda make: None,
    },
    "qwen3_omni_moe_talker_text": {
        "input_ids": lambda make: None,
        "inputs_embeds": lambda make: make.floats(BATCH, TOKENS, WIDTH),
    },
    "timesfm": {
        "past_values": lambda make: make.floats(BATCH, 64),
        "past_values_padding": lambda make: torch.zeros(BATCH, 64),
        "freq": lambda make: torch.zeros(BATCH, 1, dtype=torch.int64),
    },
    "unlimited_ocr_vision_encoder": {"patch_embeds": lambda make: make.floats(BATCH, WIDTH, 4, 4)},
    "videoprism_vision_model": {
        "pixel_values_videos": lambda make: make.floats(BATCH, 2, 3, IMAGE, IMAGE),
    },
}

_COUNTS = re.compile(r"tokens:?\s*(\d+),?.*?features:?\s*(\d+)", re.DOTALL)


def with_places(inputs: dict[str, Any], model: Any, error: Exception) -> dict[str, Any] | None:
    """The inputs with as many tokens for images (or sound) as the model's error asks for."""
    found = _COUNTS.search(str(error))
    ids = inputs.get("input_ids")
    if found is None or ids is None:
        return None
    kind = next((k for k in ("image", "video", "audio") if k in str(error).lower()), "image")
    token = Inputs(model).setting(
        f"{kind}_token_id", f"{kind}_token_index", f"{kind}_placeholder_token_id"
    )
    have, features = int(found[1]), int(found[2])
    if have == features:  # counted in numbers, not in tokens
        ids, features = ids[ids != token].reshape(BATCH, -1), features // WIDTH
    elif have > 0:
        return None
    if token is None or features % BATCH or not features:
        return None
    places = torch.full((BATCH, features // BATCH), int(token))
    ids = torch.cat([ids[:, :4], places, ids[:, 4:]], dim=1)
    changed = {**inputs, "input_ids": ids}
    if "attention_mask" in inputs:
        changed["attention_mask"] = Inputs(model).padding(ids.shape[1])
        if Inputs(model).decodes:  # the padding must not cover a place
            changed["input_ids"] = ids
    if "mm_token_type_ids" in Inputs(model).names:
        changed["mm_token_type_ids"] = (ids == token).long()
    return changed

"""A recording as the page first hears of it."""

from __future__ import annotations

from typing import Any

from jumok.view.contents import Contents
from jumok.view.passages import modes
from jumok.view.tiles import levels

__all__ = ["described"]


def described(contents: Contents) -> dict[str, Any]:
    """Its texts, maps and stacks as JSON; nothing is computed."""
    recording = contents.recording
    maps = []
    for found, place in zip(recording, contents.places, strict=True):
        batch, heads, queries, keys = found.shape
        call = found.record
        maps.append(
            {
                "name": found.name,
                "batch": batch,
                "heads": heads,
                "queries": queries,
                "keys": keys,
                "head_numbers": list(found.heads),
                "kind": place.kind,
                "causal": found.is_causal,
                "query_text": place.query_text,
                "key_text": place.key_text,
                "first_query": place.first_query,
                "first_key": place.first_key,
                "stack": place.stack,
                "levels": levels(queries, keys),
                "finest": 0,
                "held": None,
                "scale": call.scale,
                "softcap": call.softcap,
                "has_bias": call.bias is not None,
                "has_sinks": call.sinks is not None,
                "has_values": call.v is not None,
                "has_norms": found.value_norms() is not None,
                "norms_note": found.value_note,
                "width": int(call.q.shape[3]),
                "value_width": 0 if call.v is None else int(call.v.shape[3]),
            }
        )
    return {
        "title": contents.title,
        "model": recording.model_name,
        "fingerprint": contents.fingerprint,
        "without_attention": recording.what_is_not_here if recording.without_attention else "",
        "texts": [
            {
                "tokens": text.tokens,
                "words": len(text.labelled[0].reading.words) if text.labelled else text.tokens,
                "batch": text.batch,
                "labels": text.labels_are,
            }
            for text in contents.texts
        ],
        "maps": maps,
        "stacks": [
            {
                "name": stack.name,
                "maps": list(stack.maps),
                "text": stack.text,
                "causal": all(maps[number]["causal"] for number in stack.maps),
                "has_norms": all(maps[number]["has_norms"] for number in stack.maps),
                "norms_note": "; ".join(
                    dict.fromkeys(str(maps[number]["norms_note"]) for number in stack.maps)
                ),
            }
            for stack in contents.stacks
        ],
        "passages": modes(contents.texts[contents.stacks[0].text])
        if contents.stacks and contents.stacks[0].text is not None
        else [],
    }

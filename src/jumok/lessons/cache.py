"""What the KV cache saves: time per new token against length, and what it takes in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

import jumok
from jumok.lessons.lesson import Check, Findings, Language, Lesson, Running, Table, Words
from jumok.lessons.showing import COLOURS
from jumok.lessons.small import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = 8
KEY_HEADS = {"MHA": 8, "GQA": 2, "MQA": 1}


def run(running: Running) -> Findings:
    lengths = (64, 256, 1024) if running.quick else (64, 128, 256, 512, 1024, 2048)
    model = _model(HEADS, lengths[-1] + 8)
    ids = torch.randint(1000, (1, lengths[-1] + 8))
    times: dict[bool, dict[int, float]] = {True: {}, False: {}}
    errors = []
    with torch.inference_mode(), one_thread():
        for place, length in enumerate(lengths):
            running.tell(f"{length:,} tokens", place / len(lengths))
            cache = model.new_cache(room=length + 8)
            model(ids[:, :length], cache=cache)
            with_cache, without = [], []
            for step in range(length, length + 6):
                start = time.perf_counter()
                short = model(ids[:, step : step + 1], cache=cache)
                middle = time.perf_counter()
                long = model(ids[:, : step + 1], last=1)
                with_cache.append(middle - start)
                without.append(time.perf_counter() - middle)
                errors.append(float((short - long).abs().max()))
            times[True][length] = 1000 * min(with_cache)
            times[False][length] = 1000 * min(without)

        sizes = {name: _cache_bytes(key_heads) for name, key_heads in KEY_HEADS.items()}
    longest, shortest = lengths[-1], lengths[0]
    grows = times[False][longest] / times[False][shortest]
    stays = times[True][longest] / times[True][shortest]
    factor = longest // shortest
    return Findings(
        tables=(
            Table(
                Words(
                    "milliseconds for one more token, best of six",
                    "토큰 하나를 더하는 시간 (밀리초, 여섯 번 가운데 최선)",
                ),
                (
                    Words("tokens so far", "지금까지의 토큰"),
                    Words("without cache", "캐시 없이"),
                    Words("with cache", "캐시로"),
                    Words("times faster", "배 빠름"),
                ),
                [
                    (t, times[False][t], times[True][t], times[False][t] / times[True][t])
                    for t in lengths
                ],
            ),
            Table(
                Words(
                    "bytes of cache per token and layer (8 query heads of 32, float32)",
                    "토큰과 층마다 캐시 바이트 (쿼리 헤드 8개, 너비 32, float32)",
                ),
                ("", Words("key heads", "키 헤드"), Words("measured", "측정"), "2 · H_k · d · 4"),
                [
                    (name, heads, sizes[name], 2 * heads * 32 * 4)
                    for name, heads in KEY_HEADS.items()
                ],
            ),
        ),
        checks=(
            Check(
                Words("the cache changes no answer", "캐시는 답을 바꾸지 않는다"),
                max(errors) < 1e-4,
                f"±{max(errors):.0e}",
            ),
            Check(
                Words(
                    "without it a token costs more, the longer the text",
                    "캐시 없이는 길수록 토큰이 비싸진다",
                ),
                grows > factor / 3,
                f"×{grows:.1f} (×{factor} tokens)",
            ),
            Check(
                Words("with it a token costs nearly the same", "캐시가 있으면 거의 같다"),
                stays < grows / 3,
                f"×{stays:.1f} (×{factor} tokens)",
            ),
            Check(
                Words(
                    "fewer key heads make it smaller in proportion",
                    "키 헤드가 적으면 그만큼 작아진다",
                ),
                all(sizes[n] == 2 * h * 32 * 4 for n, h in KEY_HEADS.items()),
                ", ".join(f"{name} {size:,} B" for name, size in sizes.items()),
            ),
        ),
        draw=lambda figure, language: _draw(figure, language, times),
        remark=Words(
            "The cache rests on the causal mask: what was computed for earlier tokens never "
            "changes. It is paid for in memory: at 8,192 tokens, 30 layers and the sizes above "
            "{mha:.0f} MB with MHA and {mqa:.0f} MB with MQA.",
            "캐시는 인과 마스크에 기댄다. 앞 토큰에 대해 계산한 것은 바뀌지 않기 때문이다. 값은 "
            "메모리로 치른다: 토큰 8,192개, 30층, 위의 크기에서 MHA {mha:.0f} MB, MQA {mqa:.0f} "
            "MB다.",
        ).format(mha=sizes["MHA"] * 30 * 8192 / 1e6, mqa=sizes["MQA"] * 30 * 8192 / 1e6),
    )


def _model(key_heads: int, context: int) -> jumok.Decoder:
    config = jumok.Config(
        vocab_size=1000, emb_dim=32 * HEADS, n_layers=2, n_heads=HEADS, n_kv_heads=key_heads,
        context=context,
    )  # fmt: skip
    return jumok.Decoder(config).eval()


def _cache_bytes(key_heads: int) -> int:
    """Of a token in one layer, as the cache really holds it."""
    cache = _model(key_heads, 64).new_cache(room=64)
    _model(key_heads, 64)(torch.zeros(1, 64, dtype=torch.long), cache=cache)
    keys, values = cache.layers[0].extend(*(torch.empty(1, key_heads, 0, 32) for _ in range(2)))
    return (keys.numel() + values.numel()) * keys.element_size() // 64


def _draw(figure: Figure, language: Language, times: dict[bool, dict[int, float]]) -> None:
    axes = figure.add_subplot()
    labels = {False: Words("without cache", "캐시 없이"), True: Words("with cache", "캐시로")}
    for colour, (cached, found) in zip(COLOURS, times.items(), strict=False):
        lengths = list(found)
        axes.plot(lengths, list(found.values()), "o-", color=colour)
        axes.annotate(
            labels[cached].in_(language), (lengths[-1], found[lengths[-1]]), (0, 7),
            textcoords="offset points", ha="right", color=colour,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    lengths = list(times[True])
    axes.set_xticks(lengths, [f"{t:,}" for t in lengths])
    axes.set_xlabel(Words("tokens so far", "지금까지의 토큰").in_(language))
    axes.set_title(
        Words("milliseconds for one more token", "토큰 하나를 더하는 시간 (밀리초)").in_(language)
    )


LESSON = Lesson(
    name="cache",
    claim=Words(
        "A GPT needs to compute only the new token: keys and values of earlier ones are kept. That "
        "rests on the causal mask, and fewer key heads make it cheaper.",
        "GPT는 새 토큰만 계산하면 된다. 앞 토큰의 키와 값은 남겨 둔다. 이것은 인과 마스크에 "
        "기대며, 키 헤드가 적을수록 싸다.",
    ),
    setup=Words(
        "A decoder of two layers takes one more token after texts of growing length, once by "
        "reading everything again and once with its cache, on one core; the cache of one token is "
        "weighed for 8, 2 and 1 key heads.",
        "두 층 디코더에 길이를 늘려 가며 토큰 하나를 더한다. 한 번은 전부 다시 읽고 한 번은 "
        "캐시를 쓴다 (코어 하나). 토큰 하나의 캐시 크기를 키 헤드 8개, 2개, 1개로 잰다.",
    ),
    run=run,
)

"""Short steps equal whole forwards, for every family, and step aside for whoever listens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.model.peers import DECODERS, peer_folder, random_ids

import jumok
from jumok.model.checkpoints import read_folder
from jumok.model.config import Relative, Sinusoidal
from jumok.model.generate import generate
from jumok.model.steps import ShortSteps
from jumok.model.transformer import Config, Decoder

GPT = Config(vocab_size=67, emb_dim=32, n_layers=2, n_heads=4, n_kv_heads=2, init_std=0.2)
CONFIGS = {
    "window": replace(GPT, windows=(3, None)),
    "post": replace(GPT, norm_place="post", norm="layer"),
    "relative": replace(GPT, positions=Relative(8, 20)),
    "sinusoidal": replace(GPT, positions=Sinusoidal(), embedding_scale=4.0),
    "nowhere": replace(GPT, positions=None, feed_forward="relu"),
}


def built(config: Config) -> Decoder:
    torch.manual_seed(0)
    return Decoder(config).eval()


def check(model: Decoder, padded: bool) -> None:
    """Pieces of several sizes, one after another, against the whole text read at once."""
    ids = random_ids(2, 14)
    mask = torch.ones_like(ids, dtype=torch.bool)
    if padded:
        mask[1, :4] = False
    steps = ShortSteps(model)
    with torch.no_grad():
        whole = model(ids, mask)
        cache = model.new_cache(14)
        model(ids[:, :6], mask[:, :6], cache)
        start = 6
        for size in (1, 1, 3, 1, 2):
            part = slice(start, start + size)
            assert steps.can_take(ids[:, part], cache)
            found = steps(ids[:, part], cache)
            torch.testing.assert_close(found, whole[:, part], atol=2e-5, rtol=1e-4)
            start += size
        assert start == 14
        assert cache.length == 14


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_every_family(name: str, padded: bool, tmp_path: Path) -> None:
    check(read_folder(peer_folder(name, tmp_path)), padded)  # type: ignore[arg-type]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_part(config: Config, padded: bool) -> None:
    check(built(config), padded)


def test_whoever_listens_is_heard() -> None:
    model = built(GPT)
    cache, ids = model.new_cache(), random_ids(1, 1)
    steps = ShortSteps(model)
    with torch.no_grad():
        assert not steps.can_take(ids, cache)  # nothing to go on from
        model(random_ids(1, 4), None, cache)
        assert steps.can_take(ids, cache)
        for module in (model, model.layers[1], model.layers[0].attention):
            handle = module.register_forward_hook(lambda *_: None)
            assert not steps.can_take(ids, cache)
            handle.remove()
        with jumok.watch(model):
            assert not steps.can_take(ids, cache)
            model(ids, None, cache)
        assert steps.can_take(ids, cache)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not steps.can_take(ids, cache)
    assert not steps.can_take(ids, cache)  # gradients
    assert not ShortSteps(model.train()).can_take(ids, cache)
    assert not ShortSteps(torch.nn.Linear(2, 2))._known


class Louder(Decoder):
    """A model of somebody's own: it counts its forwards."""

    heard = 0

    def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.heard += 1
        return super().forward(*args, **kwargs)


def test_a_model_of_ones_own_runs_its_own_forward() -> None:
    model = Louder(GPT).eval()
    generate(model, [[3, 4]], 5, 0, stop=None)
    assert model.heard == 5

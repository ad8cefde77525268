"""Small models and a command line that runs in the test's own process."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

import jumok
from jumok.cli import main
from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN


def byte_tokenizer(special: bool) -> Tokenizer:
    """A token for each byte; with ``special``, between <s> and </s>."""
    vocabulary = {sign: id for id, sign in enumerate(BYTE_OF_SIGN)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small encoder and a small GPT with random weights, as folders."""
    from jumok.model.config import Learned

    torch.manual_seed(0)
    size = {"vocab_size": 258, "emb_dim": 16, "n_layers": 3, "n_heads": 2}
    encoder = jumok.Encoder(
        jumok.Config(
            **size,
            context=40,
            positions=Learned(),
            norm="layer",
            norm_place="post",
            norm_eps=1e-12,
            feed_forward="gelu",
            qkv_bias=True,
            output_bias=True,
            feed_forward_bias=True,
            token_types=2,
        )
    )
    decoder = jumok.Decoder(jumok.Config(**size, context=40, eos_ids=(257,)))
    found = {}
    for name, model in (("encoder", encoder), ("gpt", decoder)):
        folder = tmp_path_factory.mktemp("models") / name
        jumok.save(model, folder, byte_tokenizer(special=name == "encoder"))
        found[name] = str(folder)
    return found


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command line in this process: (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        output = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), output.out, output.err

    return call


@pytest.fixture
def refused(run: Any) -> Any:
    """Run what must fail: the one line on stderr."""

    def call(*arguments: str) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), (code, out, err)
        assert err.count("\n") == 1
        assert err.startswith("jumok: ")
        assert "Traceback" not in err
        return str(err)

    return call

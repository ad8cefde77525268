"""Every answer of a conversation is that of a fresh run, whatever has been kept between turns."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from jumok.model.cache import KeyValueCache
from jumok.model.config import Config, Learned
from jumok.model.conversation import Conversation
from jumok.model.generate import generate
from jumok.model.loading import load
from jumok.model.sampling import Sampler
from jumok.model.transformer import Decoder
from jumok.tokens import Tokenizer
from jumok.tokens.characters import BYTE_OF_SIGN

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Of an earlier answer only what stands after its last e is left.
FORGETFUL = CHAT.replace(
    "{{ message.content }}", "{{ message.content.split('e')[-1] if not loop.last else "
    "message.content }}"
)  # fmt: skip
END = 257
# A model that writes letters only writes what is encoded again as it was.
NO_LETTER = (*(id for id, sign in enumerate(BYTE_OF_SIGN) if not "a" <= sign <= "z"), 256)
GPT = Config(
    vocab_size=258, emb_dim=24, n_layers=3, n_heads=4, n_kv_heads=2, init_std=0.3, context=400,
    eos_ids=(END,), suppressed_ids=(*NO_LETTER, END),
)  # fmt: skip
CONFIGS = {
    "full": GPT,
    "window": replace(GPT, windows=(7, None, 30)),
    "learned": replace(GPT, positions=Learned(), norm="layer"),
    "any bytes": replace(GPT, suppressed_ids=(256,)),
    "ends": replace(GPT, suppressed_ids=NO_LETTER),
}
QUESTIONS = ("hello there", "and what of that?", "한글", "why")


def tokenizer(template: str | None = CHAT, begins: bool = False) -> Tokenizer:
    backend = Backend(models.BPE(vocab={s: id for id, s in enumerate(BYTE_OF_SIGN)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in
                                ("<|im_start|>", "<|im_end|>")])  # fmt: skip
    if begins:
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 256)]
        )
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return Tokenizer(backend, config | ({} if template is None else {"chat_template": template}))


def decoder(config: Config = GPT, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(config).eval()


def conversation(model: Any = None, template: str | None = CHAT, **options: Any) -> Conversation:
    options = {"max_new_tokens": 20, **options}
    return Conversation(model or decoder(), tokenizer(template), **options)


def answer(talk: Conversation, text: str) -> str:
    return "".join(talk.ask(text))


def fresh(talk: Conversation) -> list[int]:
    """What a model that has read nothing yet writes after the prompt of the last turn."""
    assert talk.last is not None
    prompt = torch.tensor([talk.last.prompt_ids])
    ids = generate(talk.model, prompt, talk.max_new_tokens, temperature=0)[0, prompt.shape[1] :]
    found: list[int] = ids.tolist()
    return found[:-1] if found[-1] == END else found


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("template", [CHAT, FORGETFUL], ids=["plain", "forgetful"])
def test_answers_are_those_of_a_fresh_run(config: Config, template: str) -> None:
    talk = conversation(decoder(config), template, system="be kind")
    for question in QUESTIONS:
        before = list(talk.messages)
        said = answer(talk, question)
        assert talk.last is not None
        assert talk.last.answer_ids == fresh(talk)
        asked = {"role": "user", "content": question}
        spoken = [asked, {"role": "assistant", "content": said}] if said else []
        assert talk.messages == before + spoken
    assert len(talk.messages) > 3


def test_only_new_tokens_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = conversation()
    read: list[int] = []
    admit = KeyValueCache.admit

    def counted(self: KeyValueCache, batch: int, new: int, mask: Any) -> Any:
        read.append(new)
        return admit(self, batch, new, mask)

    monkeypatch.setattr(KeyValueCache, "admit", counted)
    answer(talk, "hello")
    first = talk.last
    assert first is not None
    assert first.kept == 0
    assert sum(read) == len(first.prompt_ids) + len(first.answer_ids) - (
        first.ending != "finished"  # the last token that is cut off is not read any more
    )
    read.clear()
    answer(talk, "and then?")
    second = talk.last
    assert second is not None
    before = len(first.prompt_ids) + len(first.answer_ids) - (first.ending != "finished")
    assert second.kept == before
    assert second.prompt_ids[:before] == (first.prompt_ids + first.answer_ids)[:before]
    assert sum(read) <= len(second.prompt_ids) - before + len(second.answer_ids)


def test_what_the_template_changes_is_read_again() -> None:
    talk = conversation(template=FORGETFUL)
    answer(talk, "hello")
    first = talk.last
    assert first is not None
    assert "e" in tokenizer().decode(first.answer_ids)
    answer(talk, "more")
    assert talk.last is not None
    assert talk.last.kept < len(first.prompt_ids) + len(first.answer_ids) - 1
    assert talk.last.kept >= len(first.prompt_ids) - len("<|im_start|>assistant\n")
    assert talk.last.answer_ids == fresh(talk)


def test_a_long_prompt_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jumok.model.conversation.READ_AT_ONCE", 16)
    talk = conversation()
    pieces = list(talk.ask("a long message " * 10))
    waited = len(list(itertools.takewhile(lambda piece: not piece, pieces)))
    assert talk.last is not None
    assert waited >= (len(talk.last.prompt_ids) - 1) // 16
    assert talk.last.answer_ids == fresh(talk)


def test_what_was_said_before_a_stop_stays() -> None:
    talk = conversation()
    pieces = talk.ask("hello")
    said = ""
    while len(said) < 5:
        said += next(pieces)
    pieces.close()
    assert talk.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said},
    ]
    assert talk.last is not None
    assert talk.last.ending == "stopped"
    answer(talk, "go on")
    assert talk.last.answer_ids == fresh(talk)


def test_a_question_without_an_answer_is_not_kept() -> None:
    talk = conversation()
    answer(talk, "hello")
    before = list(talk.messages)
    pieces = talk.ask("again")
    assert next(pieces) == ""  # still reading
    pieces.close()
    assert talk.messages == before
    answer(talk, "again")
    assert talk.last is not None
    assert talk.last.answer_ids == fresh(talk)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_between_two_layers_spoils_nothing(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = conversation()
    answer(talk, "hello")

    def fail(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(talk.model.layers[1], "forward", fail)
        with pytest.raises(error):
            answer(talk, "and?")
    assert len(talk.messages) == 2
    answer(talk, "and?")
    assert talk.last is not None
    assert talk.last.answer_ids == fresh(talk)


def test_undo_and_new() -> None:
    talk = conversation(system="be kind")
    first = answer(talk, "hello")
    answer(talk, "and?")
    assert talk.undo()
    assert talk.messages[1:] == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": first},
    ]
    answer(talk, "or?")
    assert talk.last is not None
    assert talk.last.kept > 0
    assert talk.last.answer_ids == fresh(talk)
    talk.new()
    assert talk.messages == [{"role": "system", "content": "be kind"}]
    assert not talk.undo()


def test_loaded_messages_are_gone_on_with() -> None:
    talk = conversation(system="be kind")
    talk.load([{"role": "user", "content": "hello"}])
    said = "".join(talk.ask(None))
    assert talk.messages == [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": said},
    ]


@pytest.mark.parametrize("config", [CONFIGS["full"], CONFIGS["learned"]], ids=["rotary", "learned"])
def test_the_oldest_turns_go_when_the_context_is_full(config: Config) -> None:
    talk = conversation(decoder(config), system="be kind", max_new_tokens=60)
    left_out = []
    for number in range(9):
        answer(talk, f"question {number}")
        assert talk.last is not None
        left_out.append(talk.left_out)
        assert talk.last.answer_ids == fresh(talk)
        assert len(talk.last.prompt_ids) + 60 <= 400
        read = talk.last.messages
        assert read[0] == {"role": "system", "content": "be kind"}
        assert read[1]["role"] == "user"
        assert read[-1]["content"] == f"question {number}"
        assert len(read) == len(talk.messages) - 1 - talk.left_out
    assert left_out[0] == 0
    assert left_out[-1] >= 4
    assert left_out == sorted(left_out)
    assert len(set(left_out)) < 5  # each time more than one turn goes
    assert len(talk.messages) == 19  # all of them can still be written to a file


def test_a_message_that_never_fits_is_refused() -> None:
    talk = conversation()
    answer(talk, "hello")
    before = list(talk.messages)
    with pytest.raises(ValueError, match=r"the message needs 4\d\d tokens .* at most 400 and 20"):
        list(talk.ask("x" * 400))
    assert talk.messages == before
    assert talk.left_out == 0
    answer(talk, "and?")
    assert talk.last is not None
    assert talk.last.answer_ids == fresh(talk)


def test_an_answer_ends_where_the_context_does() -> None:
    talk = conversation(decoder(replace(GPT, context=40)), max_new_tokens=100)
    answer(talk, "a")
    assert talk.last is not None
    assert talk.last.ending == "context"
    assert len(talk.last.prompt_ids) + len(talk.last.answer_ids) == 40


def test_an_answer_ends_with_the_mark_of_the_template() -> None:
    """Also where the model's settings name another end."""
    forced = decoder(replace(GPT, eos_ids=(), suppressed_ids=tuple(set(range(257)) - {97})))
    talk = Conversation(forced, tokenizer(), sampler=Sampler(5.0), seed=1, max_new_tokens=200)
    said = answer(talk, "hello")
    assert talk.last is not None
    assert talk.last.ending == "finished"
    assert said == "a" * len(said)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_seed_repeats_and_a_copy_changes_nothing(keeps: bool) -> None:
    def talked(keeps: bool) -> list[dict[str, str]]:
        talk = conversation(sampler=Sampler(1.5, top_p=0.9), seed=3)
        talk.keeps_before = keeps
        for question in QUESTIONS:
            answer(talk, question)
        return talk.messages

    assert talked(keeps) == talked(False)


def test_the_copy_holds_all_but_the_last_token_of_the_prompt() -> None:
    talk = conversation()
    talk.keeps_before = True
    for question in QUESTIONS:
        answer(talk, question)
        turn = talk.last
        assert turn is not None
        assert turn.before is not None
        assert turn.before.length == len(turn.prompt_ids) - 1


@pytest.mark.parametrize("begins", [False, True])
def test_a_model_without_a_template(begins: bool) -> None:
    talk = Conversation(decoder(), tokenizer(None, begins), system="be kind", max_new_tokens=10)
    assert talk.is_plain
    answer(talk, "hello")
    assert talk.last is not None
    begin = "<|im_start|>" if begins else ""
    assert talk.last.prompt == f"{begin}System: be kind\nUser: hello\nAssistant:"
    assert talk.last.answer_ids == fresh(talk)


def test_a_family_that_transformers_runs(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=258, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=300, eos_token_id=END, bos_token_id=None,
        initializer_range=0.3,
    )  # fmt: skip
    transformers.GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    model, _ = load(tmp_path)
    talk = conversation(model)
    for question in QUESTIONS:
        answer(talk, question)
        assert talk.last is not None
        assert talk.last.answer_ids == fresh(talk)
    assert talk.last.kept > 0

"""A conversation with a model: what it has read is kept, and each turn only adds to it.

Every turn the messages are put into the model's chat template and encoded anew. What they have in
common with the tokens whose keys and values are kept is not read again; the rest is, so an answer
is that of a fresh run whatever the template does with earlier messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from jumok.model.added_text import AddedText
from jumok.model.cache import KeyValueCache
from jumok.model.foreign import ForeignDecoder
from jumok.model.sampling import Sampler
from jumok.model.steps import ShortSteps
from jumok.model.transformer import Decoder
from jumok.tokens import Tokenizer, as_tokenizer
from jumok.tokens.chat import prompt_text

__all__ = ["Conversation", "Message", "Turn"]

Message = dict[str, str]
Ending = Literal["finished", "length", "context", "stopped"]

READ_AT_ONCE = 512  # tokens; between two parts a caller may stop

_LIKELIEST = Sampler(0.0)

# For models that were never taught a conversation: what a written one looks like.
_PLAIN = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | trim }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
_PLAIN_STOPS = ("\nUser:", "\nSystem:", "\nAssistant:")


@dataclass
class Turn:
    """What the model read for its last answer, and what it wrote.

    Attributes:
        messages: those that were read, the answer not among them.
        prompt: the text that was read.
        prompt_ids: its token ids.
        kept: how many of them were known from earlier turns.
        answer_ids: the tokens of the answer, without the one that ended it.
        ending: why the answer ended.
        before: the cache before the last token of the prompt, if `Conversation.keeps_before`.
    """

    messages: tuple[Message, ...]
    prompt: str
    prompt_ids: list[int]
    kept: int = 0
    answer_ids: list[int] = field(default_factory=list)
    ending: Ending = "stopped"
    before: KeyValueCache | None = None


class Conversation:
    """Messages and answers, with the keys and values of what has been read.

    Args:
        model: a `Decoder`, or one that transformers runs.
        tokenizer: its tokenizer. Without a chat template messages are written as
            ``User: …`` and ``Assistant: …`` (`is_plain`).
        system: a system message, which is never left out.
        sampler: how tokens are chosen.
        max_new_tokens: of one answer.
        seed: for answers that can be repeated.

    Attributes:
        messages: {"role": "system" | "user" | "assistant", "content": …}, oldest first.
        left_out: how many of the oldest messages, the system's apart, no longer fit into the
            model's context and are not read.
        keeps_before: keep a copy of the cache for each turn, so that its answer can be read once
            more under `jumok.watch`.
        last: the last turn, `None` before the first.
    """

    def __init__(
        self,
        model: Decoder | ForeignDecoder,
        tokenizer: Any,
        *,
        system: str | None = None,
        sampler: Sampler = _LIKELIEST,
        max_new_tokens: int = 512,
        seed: int | None = None,
    ) -> None:
        self.model, self.sampler, self.max_new_tokens = model, sampler, max_new_tokens
        self.tokenizer: Tokenizer = as_tokenizer(tokenizer)
        self.is_plain = self.tokenizer.chat_template is None
        if self.is_plain:
            self.tokenizer = _with_plain_template(self.tokenizer)
        self.keeps_before = False
        self._generator = None
        if seed is not None:
            place = next(model.parameters()).device
            self._generator = torch.Generator(device=place).manual_seed(seed)
        self._known = _Known(model)
        self._system = system
        self._ends = {*model.config.eos_ids, *_turn_ends(self.tokenizer)}
        if self.tokenizer.eos_id is not None:
            self._ends.add(self.tokenizer.eos_id)
        self.new()

    def new(self) -> None:
        """Forget all messages but the system's."""
        self.messages: list[Message] = []
        if self._system is not None:
            self.messages.append({"role": "system", "content": self._system})
        self.left_out = 0
        self.last: Turn | None = None

    def undo(self) -> bool:
        """Take back the last message of the user and all that follows; whether there was one."""
        roles = [one["role"] for one in self.messages]
        if "user" not in roles:
            return False
        del self.messages[len(roles) - 1 - roles[::-1].index("user") :]
        self.left_out = 0  # with fewer messages, older ones may fit again
        self.last = None
        return True

    def load(self, messages: Sequence[Message]) -> None:
        """Go on with other messages; a system message is one of them or there is none."""
        self.messages = [dict(one) for one in messages]
        self.left_out = 0
        self.last = None

    def ask(self, text: str | None) -> Generator[str, None, None]:
        """Give the answer to ``text`` piece by piece; ``""`` while the prompt is being read.

        A caller that stops early closes the iterator: what was said so far is the answer. A
        question to which nothing was said is not kept.

        Args:
            text: the user's message; `None` to answer the last one that there is.

        Raises:
            ValueError: the message doesn't fit into the model's context, or the template refuses
                it; the conversation is as it was before.
        """
        asked = [] if text is None else [{"role": "user", "content": text}]
        turn = self._fitted([*self.messages, *asked])
        self.messages += asked
        self.last = turn
        said = ""
        try:
            for piece in self._answer(turn):
                if self.is_plain and not said:
                    piece = piece.lstrip()
                said += piece
                yield piece
        finally:
            if said:
                self.messages.append({"role": "assistant", "content": said})
            elif asked:
                self.messages.pop()

    def _answer(self, turn: Turn) -> Iterator[str]:
        """Read the prompt, then choose tokens until one ends the answer."""
        known, ids = self._known, turn.prompt_ids
        turn.kept = known.go_back(ids)
        # The last token is read by itself, so that it is all the same whether a copy is kept.
        while len(known.ids) < len(ids) - 1:
            known.read(ids[len(known.ids) : len(ids) - 1][:READ_AT_ONCE])
            yield ""
        if self.keeps_before:
            turn.before = known.cache.fork()
        text = AddedText(self.tokenizer, _PLAIN_STOPS if self.is_plain else ())
        most = min(self.max_new_tokens, self.model.config.context - len(ids))
        token = ids[-1]
        for _ in range(most):
            token = self._chosen(known.read([token]), turn)
            if token in self._ends:
                turn.ending = "finished"
                break
            turn.answer_ids.append(token)
            text.push(token)
            yield text.take()
            if text.stopped:
                turn.ending = "finished"
                break
        else:
            turn.ending = "length" if most == self.max_new_tokens else "context"
        yield text.finish()

    def _chosen(self, logits: Tensor, turn: Turn) -> int:
        """The next token, of logits (1, V)."""
        suppressed = list(self.model.config.suppressed_ids)
        if suppressed:
            logits[:, suppressed] = -torch.inf
        seen: list[int] = []
        if self.sampler.repetition_penalty != 1.0:
            seen = turn.prompt_ids + turn.answer_ids
        return int(self.sampler(logits, logits.new_tensor([seen]).long(), self._generator))

    def _fitted(self, messages: list[Message]) -> Turn:
        """What of the messages is read: all, or as many of the newest as have room.

        When they no longer fit, so many turns are left out that half of the context is free: the
        next turns then find their beginning read already.
        """
        context = self.model.config.context
        most = context - max(1, min(self.max_new_tokens, context // 4))
        left_out, wanted = self.left_out, most
        while True:
            turn = self._turn(messages, left_out)
            size = len(turn.prompt_ids)
            following = _next_turn(messages, left_out)
            if size <= wanted or (following is None and size <= most):
                break
            if following is None:
                raise ValueError(
                    f"the message needs {size:,} tokens with its template, the model reads at most "
                    f"{context:,} and {context - most:,} of them are for its answer; shorten it"
                )
            left_out, wanted = following, min(most, context // 2)
        self.left_out = left_out
        return turn

    def _turn(self, messages: list[Message], left_out: int) -> Turn:
        first = _first_body(messages)
        read = [*messages[:first], *messages[first + left_out :]]
        text = prompt_text(self.tokenizer, read, ask=True)
        ids = self.tokenizer.encode(text, False)
        if not ids:
            raise ValueError("the message is empty for this model: it gives no token")
        return Turn(tuple(read), text, ids)


class _Known:
    """The tokens that were read last, and their keys and values.

    Attributes:
        ids: the tokens.
        cache: of the model.
    """

    def __init__(self, model: Decoder | ForeignDecoder) -> None:
        self._model = model
        self._steps = ShortSteps(model)
        self._forget()

    def _forget(self) -> None:
        self.ids: list[int] = []
        self.cache: KeyValueCache = self._model.new_cache()

    def go_back(self, ids: list[int]) -> int:
        """Keep what both texts begin with, but for the last token; how many tokens these are."""
        common = 0
        for known, wanted in zip(self.ids, ids[:-1], strict=False):
            if known != wanted:
                break
            common += 1
        if self.cache.truncate(common):
            del self.ids[common:]
        else:
            self._forget()
        return len(self.ids)

    def read(self, ids: list[int]) -> Tensor:
        """Read further tokens; the logits of the one after them (1, V)."""
        new = torch.tensor([ids], device=next(self._model.parameters()).device)
        logits: Tensor
        try:
            with torch.no_grad():
                if self._steps.can_take(new, self.cache):
                    logits = self._steps(new, self.cache, last=1)
                else:
                    logits = self._model(new, None, self.cache, 1)
        except BaseException:  # some layers have read them, others haven't
            self._forget()
            raise
        self.ids += ids
        return logits[:, -1]


def _first_body(messages: Sequence[Message]) -> int:
    """Where the conversation begins, after the system's message."""
    return 1 if messages and messages[0]["role"] == "system" else 0


def _next_turn(messages: Sequence[Message], left_out: int) -> int | None:
    """How many messages are left out if the oldest turn that is read goes, too."""
    body = messages[_first_body(messages) :]
    starts = [place for place, one in enumerate(body) if one["role"] == "user"]
    return next((place for place in starts if place > left_out), None)


def _turn_ends(tokenizer: Tokenizer) -> set[int]:
    """The special token with which the template ends an answer, if it is one."""
    mark = "\ue000"
    try:
        text = prompt_text(
            tokenizer,
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}],
        )
    except ValueError:
        return set()
    after = tokenizer.encode(text.partition(mark)[2].lstrip(), False)
    return {id for id in after[:1] if id in tokenizer.special_ids}


def _with_plain_template(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with a template for models that have none."""
    begin = tokenizer.encode("")[:1]
    first = "{{ bos_token }}" if begin and begin[0] == tokenizer.bos_id else ""
    config = {**tokenizer.config, "chat_template": first + _PLAIN}
    return Tokenizer(tokenizer.backend, config, tokenizer.special_ids)

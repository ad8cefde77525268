"""A model that reads texts while it is watched."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jumok.cli.ending import Refusal
from jumok.cli.memory import free_memory
from jumok.cli.progress import Tell

if TYPE_CHECKING:
    from jumok.lens.recording import Recording
    from jumok.model.foreign import ForeignDecoder
    from jumok.model.transformer import Decoder
    from jumok.tokens import Tokenizer


class Reader:
    """A loaded model that reads texts under `watch`.

    Args:
        name: one of ours, a model's folder or a .gguf file.
        keep: options of `watch` that say what is kept.
        translators: whether an encoder-decoder is welcome: it is `translator` then.
    """

    def __init__(
        self, name: str, keep: dict[str, Any] | None = None, translators: bool = False
    ) -> None:
        from jumok.model.encoder_decoder import EncoderDecoder
        from jumok.model.foreign import ForeignEncoderDecoder
        from jumok.model.loading import load

        path = Path(name)
        self._keep = keep or {}
        self.name = path.stem if path.suffix == ".gguf" else path.name if path.is_dir() else name
        model, tokenizer = load(name)
        self.translator: EncoderDecoder | ForeignEncoderDecoder | None = None
        if isinstance(model, (EncoderDecoder, ForeignEncoderDecoder)):
            if not translators:
                raise Refusal(
                    f"{name} has an encoder and a decoder, the command reads with one of them; "
                    f'jumok look "TEXT" --model {name} shows what its words read'
                )
            self.translator = model
        self.model: Any = model
        if tokenizer is None:
            raise Refusal(f"{name} has no tokenizer; put its tokenizer.json beside the weights")
        self.tokenizer: Tokenizer = tokenizer

    def decoder(self) -> "Decoder | ForeignDecoder":
        """The model, if it can continue a text."""
        from jumok.model.foreign import ForeignDecoder
        from jumok.model.transformer import Decoder

        if not isinstance(self.model, (Decoder, ForeignDecoder)):
            raise Refusal(f"{self.name} is an encoder and can't continue a text; try smollm2")
        return self.model

    def ids(self, text: str, special: bool = True, new: int = 0) -> list[int]:
        """The tokens of a text; refused if they, and so many new ones, are more than it reads."""
        ids = self.tokenizer.encode(text, special)
        context = self.model.config.context
        if not ids:
            raise Refusal("the text is empty for this model: it gives no token")
        if len(ids) + new > context:
            more = f" and {new:,} are to be written" if new else ""
            raise Refusal(
                f"the text has {len(ids):,} tokens{more}, {self.name} reads at most {context:,}; "
                "shorten it"
            )
        return ids

    def read(self, text: str) -> "Recording":
        return self.read_ids(self.ids(text))

    def read_ids(self, ids: list[int]) -> "Recording":
        import torch

        from jumok.lens.watch import watch
        from jumok.model.foreign import ForeignDecoder
        from jumok.model.transformer import Decoder

        self._check_memory(len(ids))
        has_logits = isinstance(self.model, (Decoder, ForeignDecoder))
        keywords = {"last": 1} if has_logits else {}  # they aren't needed
        with torch.inference_mode(), watch(self.model, **self._keep) as recording:
            self.model(torch.tensor([ids]), **keywords)
        return recording

    def label(self, recording: "Recording", text: str, prompt: int | None = None) -> None:
        """Let a recording know its model's name and its words."""
        recording.model_name = self.name
        recording.label(self.tokenizer, text, prompt)

    def go_on(self, ids: list[int], new: int, tell: Tell) -> "Recording":
        """Let the model write up to ``new`` tokens, always the likeliest, and watch it."""
        import torch

        from jumok.lens.watch import watch
        from jumok.model.generate import stream

        decoder = self.decoder()
        self._check_memory(len(ids) + new)
        with torch.inference_mode(), watch(decoder, **self._keep) as recording:
            # The last token that is chosen is never read: one more, so that the last of the
            # answer is.
            for count, _ in enumerate(stream(decoder, ids, new + 1, 0.0)):
                tell(f"writing: {min(count + 1, new):,} of {new:,} tokens")
        return recording

    def _check_memory(self, tokens: int) -> None:
        """Refuse what can't fit, before the system ends the process without a word."""
        config = self.model.config
        size = next(self.model.parameters()).element_size()
        heads = config.n_heads + 2 * (config.n_kv_heads or config.n_heads)
        width = config.head_dim or config.emb_dim // max(1, config.n_heads)
        needed = size * tokens * config.n_layers * heads * width  # queries, keys and values
        free = free_memory()
        if free is not None and needed > free:
            raise Refusal(
                f"not enough memory: reading {tokens:,} tokens with {self.name} takes at least "
                f"{needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; shorten the text"
            )

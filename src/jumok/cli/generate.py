"""``jumok generate``: continue a text with a GPT."""

from typing import Annotated

import typer

from jumok.cli.ending import Refusal
from jumok.cli.inputs import Model
from jumok.cli.reader import Reader

LARGEST_SEED = 2**63 - 1


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on with.")],
    model: Model = "smollm2",
    tokens: Annotated[int, typer.Option(help="At most so many new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.7,
    top_k: Annotated[int | None, typer.Option(help="Choose among the k likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Choose among the likeliest with this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Make the choice repeatable.")] = None,
) -> None:
    """Continue a text with a GPT, printed as it comes."""
    if not prompt.strip():
        raise Refusal("the text is empty")
    if tokens < 1:
        raise Refusal(f"--tokens {tokens}: at least 1")
    if seed is not None and not 0 <= seed <= LARGEST_SEED:
        raise Refusal(f"--seed {seed}: a whole number from 0 to {LARGEST_SEED}")
    reader = Reader(model)
    decoder = reader.decoder()

    from jumok.model.generate import stream_text
    from jumok.tokens import printable

    pieces = stream_text(
        decoder,
        reader.tokenizer,
        reader.ids(prompt),
        tokens,
        temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    print(printable(prompt), end="", flush=True)
    for piece in pieces:
        print(printable(piece), end="", flush=True)
    print()

"""Which passage did the answer need: attention against leaving out.

Twelve questions, two about each paragraph of docs/policy.txt, each asked once with the paragraphs
in another order. SmolLM2 answers in up to 40 tokens. Counted is how often the paragraph that the
question is about comes first among the six: by the share of what attention brought (all layers),
and by what the answer loses when the paragraph is left out.

    python benchmarks/passages.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import jumok
from jumok.cli.reader import Reader
from jumok.tokens.chat import render
from jumok.tokens.passages import cut

POLICY = Path(__file__).parents[1] / "docs" / "policy.txt"
QUESTIONS = {
    "Returns": [
        "How many days do I have to return a product?",
        "Must I keep the original packaging?",
    ],
    "Shipping": [
        "How much must I order for free shipping?",
        "How long do parcels to islands take?",
    ],
    "Warranty": [
        "My phone fell into the lake. Does the warranty pay for the repair?",
        "For how many months do you cover defects in material?",
    ],
    "Payment": ["What is the fee for every reminder?", "Can companies pay by invoice?"],
    "Privacy": ["Do you sell personal data?", "Why do you store my address?"],
    "Support": [
        "When is the telephone line open?",
        "How fast does the support team answer by e-mail?",
    ],
}


def main() -> None:
    reader = Reader("smollm2")
    paragraphs = POLICY.read_text().split("\n\n")[:6]
    random = np.random.default_rng(0)
    hits = {"share": 0, "left out": 0}
    print(f"{'question':66} by share       left out")
    for about, questions in QUESTIONS.items():
        for question in questions:
            order = random.permutation(6)
            body = "\n\n".join([*(paragraphs[i] for i in order), f"Question: {question}"])
            text, said = render(reader.tokenizer, [{"role": "user", "content": body}], True)
            ids = reader.ids(text, False, 40)
            recording = reader.go_on(ids, 40, lambda _: None)
            data = jumok.segments(
                recording, reader.tokenizer, cut(text, "paragraphs", said), text=text,
                prompt=len(ids),
            )  # fmt: skip
            assert recording.ids is not None
            places = [one.tokens for one in data.segments[-8:-2]]
            left = jumok.leave_out(reader.decoder(), recording.ids[0], len(ids), places)
            names = [paragraphs[i].split(".")[0] for i in order]
            shares = data.share.total[-1, -len(data.apart) - 8 : -len(data.apart) - 2]
            found = {
                "share": names[int(np.argmax(shares))],
                "left out": names[int(np.argmax([loss or 0.0 for loss in left.losses]))],
            }
            for way, name in found.items():
                hits[way] += name == about
            print(f"{question:66} {found['share']:14} {found['left out']:14}")
    print(f"the right paragraph first: by share {hits['share']} of 12, "
          f"left out {hits['left out']} of 12")  # fmt: skip


if __name__ == "__main__":
    main()

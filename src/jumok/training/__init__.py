"""Teach a model: from a corpus to a folder that `jumok.load` and transformers read.

    result = jumok.train(jumok.Training("corpus.txt", out="runs/first"))

The same call again goes on where the last snapshot was taken, and ends with the same weights, bit
for bit, as a run that nothing had stopped.

Who calls whom (`loop.train`, top to bottom)::

    settings.Training               everything that is asked for; frozen, checked, JSON both ways
    parallel.join(training)         -> World: this process and the others, its device
    corpus.read_corpus(…)           -> Corpus: documents of a file, a folder, "topics", a task
    new_tokenizer.new_tokenizer(…)  -> Tokenizer, trained if asked for
    tokenise.tokenise(…)            -> Tokens: token files for training and for validation
    batches.new_batches(…)          -> Batches: step number -> Batch
    sizes.new_model(…)              -> a Decoder, Encoder or EncoderDecoder
    lora.add_lora(…)                if asked for
    objective.Objective(model)      -> Module: Batch -> summed loss; never holds all logits
    world.wrap(objective, …)        -> the same under DDP or FSDP2
    optimiser.new_optimiser(…)      -> AdamW in groups, its schedule; clipping, moving average
    snapshot.latest / load / save   the whole state of a run, atomically
    log.Log                         terminal, log.jsonl, TensorBoard, curves.png, report.html

Seams. B batch, T context, Ts and Tt tokens of source and target. ``tell`` is how long work says
how far it is: ``tell(what: str, done: int, total: int | None)``, called a few times a second at
most; ``total`` and ``done`` in the same unit (bytes, documents).

``corpus.py`` (``files.py`` reads, ``tasks.py`` generates)::

    read_corpus(corpus: str | Path, *, pairs: bool = False, fields=()) -> Corpus
        # pairs: family == "seq2seq"; fields: names in .jsonl and .parquet
        # ValueError, OSError: no such corpus, empty, …
    Corpus.name: str                               # for people: "topics", "corpus.txt"
    Corpus.n_bytes: int | None                     # for progress, if known
    Corpus.pairs: bool                             # documents are (source, target): seq2seq
    Corpus.fingerprint: str                        # changes when the corpus does
    Corpus.documents() -> Iterator[str | tuple[str, str]]

``new_tokenizer.py``, ``tokenise.py``, ``token_file.py``::

    new_tokenizer(kind: str, corpus, vocab_size: int, folder: Path, tell, *, family) -> Tokenizer
        # kind: "bytes", "bpe", "smollm2", "minilm" or a folder. A new one has the special tokens
        # of the family; written to `folder`; read from there if it is there already
    tokenise(corpus, tokenizer, folder: Path, *, validation: float, family: str, tell) -> Tokens
        # .train, .validation: TokenFile; parallel by the library's threads; resumable
    TokenFile.n_tokens: int; len(TokenFile): documents
    special.special_id(tokenizer, "pad_token", …) -> int | None

``batches.py``: a batch is a pure function of (seed, step, rank, world)::

    new_batches(family: str, tokens: TokenFile, tokenizer: Tokenizer, *, batch: int, context: int,
                seed: int, apart: bool = False, bos_id: int | None = None) -> Batches
        # apart ("gpt"): documents in a row don't see each other: Batch.documents, Batch.rule
        # bos_id ("seq2seq"): what a target begins with, the model's config.bos_id
    Batches(step: int, rank: int = 0, world: int = 1) -> Batch
        # step from 0. The rows of rank r of `batch` rows in all; over the ranks, the same rows in
        # the same order for any world. No epoch loses its last rows: steps run on into the next
    Batches.once() -> Iterator[Batch]              # every row once, in the order of the file
    Batches.n_batches: int                         # in one pass over the tokens, at least 1
    Batches.epoch(step) -> float                   # passes that are behind
    Batches.tokens_per_batch: int                  # tokens read in one step, of all ranks
    Pairs.n_left_out: int                          # pairs longer than the context: say so

    @dataclass(frozen=True)
    class Batch:
        ids: Tensor                    # int64 (B, T): what the model reads; (B, Ts), the source
        targets: Tensor                # int64 (B, T) or (B, Tt): the right answer, −100 = none
        mask: Tensor | None            # bool (B, T) or (B, Ts), True = real; None: all real
        target_ids: Tensor | None      # int64 (B, Tt), seq2seq: what the decoder reads, bos first
        target_mask: Tensor | None     # bool (B, Tt)
        def n_targets -> int           # property: how many targets count
        def split(rows: int) -> list[Batch]        # micro-batches of so many rows
        def to(device) -> Batch

    GPT: targets are ids shifted once (targets[t] = ids[t + 1], from T + 1 tokens of the file).

``objective.py``::

    Objective(model, *, label_smoothing: float = 0.0, checkpoint: bool = False)
    Objective(batch: Batch) -> Tensor              # loss summed over the batch's targets, in nats
    Objective.model                                # ours, unwrapped

    The step divides the sum by the targets of the whole step, of all micro-batches and ranks:
    tokens are weighed, not micro-batches.

``parallel.py``::

    join(parallel: str | None, device: str | None) -> World      # None, "ddp", "fsdp"
    World.rank, World.size, World.device: torch.device; World.is_main -> bool
    World.wrap(objective: Objective) -> nn.Module
    World.sum(*values: float) -> tuple[float, ...]               # float64, over all ranks
    World.agree(flag: bool) -> bool                # True everywhere if it is anywhere (Ctrl-C)
    World.last(module, last: bool) -> context manager            # gradients are exchanged at last
    World.main_first() -> context manager          # the main process does it, then the others
    World.leave() -> None

``lora.py``::

    add_lora(model, rank: int, alpha: float) -> None             # in place; the rest is frozen
    merge_lora(model) -> None                      # in place: a plain model again

``snapshot.py``::

    @dataclass
    class State:                                   # what a run is, at a moment
        module: nn.Module                          # what World.wrap gave
        optimiser: torch.optim.Optimizer
        average: MovingAverage | None              # .state_dict(), .load_state_dict()
        step: int                                  # steps that are done
        numbers: dict[str, Any]                    # JSON: tokens read, targets, last losses
    save(folder: Path, state: State, world: World, keep: int) -> Path
        # folder is OUT/snapshots; folder/step-00000100 appears whole or not at all
    latest(folder: Path) -> Path | None            # the newest whole snapshot
    load(path: Path, state: State, world: World) -> None         # in place; RNGs too

``optimiser.py``::

    new_optimiser(model, training) -> torch.optim.AdamW          # matrices decay, the rest doesn't
    rate(training, step: int, steps: int, emb_dim: int) -> float # step from 0
    MovingAverage(model, decay)

The folder of a run::

    training.json                                  the settings
    config.json, model.safetensors, tokenizer.json …             the model: jumok.load(folder)
    log.jsonl, tensorboard/, curves.png, report.html
    snapshots/step-00000100/
    data/                                          tokens (`Training.data`: elsewhere, shared)
"""

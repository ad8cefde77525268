"""Teach a model: from a corpus to a folder that `jumok.load` and transformers read.

    result = jumok.train(jumok.Training("corpus.txt", out="runs/first"))

The same call again goes on where the last snapshot was taken, and ends with the same weights, bit
for bit, as a run that nothing had stopped.

Who calls whom (`loop.train`, top to bottom)::

    settings.Training               everything that is asked for; frozen, checked, JSON both ways
    parallel.join(…)                -> World: this process and the others, its device
    folder.claim(…)                 the folder of the run is free, writable, and this run's
    corpus.read_corpus(…)           -> Corpus: documents of files, "topics", a task (files, tasks)
    new_tokenizer.new_tokenizer(…)  -> Tokenizer, trained if asked for
    tokenise.tokenise(…)            -> Tokens: token files (token_file) to learn from and to check
    batches.new_batches(…)          -> Batches: step number -> Batch (pair_batches for pairs)
    sizes.new_model, load_base      -> a Decoder, Encoder or EncoderDecoder
    lora.add_lora(…)                if asked for
    objective.Objective(model)      -> Module: Batch -> summed loss; never holds all logits
    World.wrap(objective)           -> the same under DDP or FSDP2
    optimiser.new_optimiser(…)      -> AdamW in groups, its schedule, a mean of the weights
    snapshot.latest, load, save     the whole state of a run, atomically (snapshot_files)
    compiling.compile_blocks(…)     if asked for
    stopping.Stop                   Ctrl-C between two steps
    machine                         measured peak, counted operations
    samples.sample(…)               what the model writes at an evaluation
    log.Log, terminal.Terminal      log.jsonl, TensorBoard; what a person sees
    curves, report                  curves.png, report.html

What is agreed between them:

- A batch is a pure function of (seed, step, rank, world): a run has no state of its data.
- The objective gives a *sum* over targets, and gradients are added over processes: the step
  divides by the targets of the whole step, of all micro-batches and processes.
- Random numbers are drawn by dropout alone; their generators are part of a snapshot, and an
  evaluation leaves them as they were.
- Only the main process prints and writes, but for its part of a snapshot.

The folder of a run::

    training.json                                  the settings
    config.json, model.safetensors, tokenizer.json …             the model: jumok.load(folder)
    adapter/                                       for peft, with LoRA
    log.jsonl, tensorboard/, curves.png, report.html
    snapshots/step-00000100/
    data/                                          tokens (`Training.data`: elsewhere, shared)
"""

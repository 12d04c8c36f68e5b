#!/usr/bin/env python3
"""Train a recognizer on AN4 with CTC over characters or phones, and decode it greedily, and by search for words.

    python recipes/an4/train.py hparams/an4/characters.yaml --data_folder data/an4 --output_folder results/an4

Whatever stands in the YAML can be given on the command line: ``--seed 7 --number_of_epochs 10``.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plots  # at the top: without matplotlib the run stops here, not after training
import torch
from prepare import Utterance, describe, prepare_an4
from torch import Tensor
from torch.nn import functional
from units import Characters, make_encoder, make_search

import brainlib as bl
from brainlib import Stage
from brainlib.audio import InputNormalization, absolute_lengths
from brainlib.text.decoding import WordNgram

EVALUATION_LOADER = {"batch_size": 16}


class An4Brain(bl.Brain):
    """Features, the network, the loss; on what is not trained on, errors counted and outputs kept for the search."""

    seconds_before = 0.0  # of training, in the processes before this one
    started: float | None = None  # when training began in this one

    def __init__(self, *args: Any, encoder: bl.CTCTextEncoder, units: Characters, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.encoder = encoder
        self.units = units
        self.word_errors = bl.ErrorRateStats()
        self.token_errors = bl.ErrorRateStats()
        self.outputs: dict[str, Tensor] = {}  # log-probabilities by utterance, [frames, tokens]
        self.train_loss = 0.0
        self.seed: int = self.hparams.seed  # a run that is resumed keeps the one that it began with

    # -------------------------------------------------------------------------------------------- what is computed

    def features(self, batch: bl.PaddedBatch, stage: Stage) -> tuple[Tensor, Tensor]:
        """Cepstra with their deltas, [B, F, M], before they are brought to one scale; and how many frames each has."""
        cepstra, lengths = batch.cepstra
        counts = absolute_lengths(lengths, cepstra.shape[1])
        cepstra = self.hparams.normalize(cepstra, counts)
        if stage is Stage.TRAIN:
            cepstra, counts = self.hparams.augment(cepstra, counts)
        return self.hparams.deltas(cepstra, counts), counts

    def compute_forward(self, batch: bl.PaddedBatch, stage: Stage) -> tuple[Tensor, Tensor]:
        features, counts = self.features(batch, stage)
        features = self.modules.scale(features, counts)
        return self.modules.model(features, counts), self.modules.model.num_frames(counts)

    def compute_objectives(
        self, predictions: tuple[Tensor, Tensor], batch: bl.PaddedBatch, stage: Stage
    ) -> Tensor:
        log_probs, counts = predictions
        if stage is not Stage.TRAIN:
            heard = self.encoder.decode_greedy(log_probs, counts)
            self.token_errors.append(batch.id, heard, [self.units.spell(text) for text in batch.text])
            words = [self.units.read(tokens) for tokens in heard]
            self.word_errors.append(batch.id, words, [text.split() for text in batch.text])
            for name, output, count in zip(batch.id, log_probs, counts.tolist(), strict=True):
                self.outputs[name] = output[:count].cpu()
        tokens = batch.tokens
        # A word said so fast, and played faster still, that its tokens do not fit into its frames says nothing.
        loss = functional.ctc_loss(
            log_probs.transpose(0, 1),
            tokens.data,
            counts,
            tokens.num_entries,
            reduction="sum",
            zero_infinity=stage is Stage.TRAIN,
        )
        return loss / batch.batchsize

    # ------------------------------------------------------------------------------------------ when it is computed

    def on_fit_start(self) -> None:
        super().on_fit_start()  # makes the optimizer, and goes on from the newest checkpoint if there is one
        self.started = time.monotonic()

    def on_stage_start(self, stage: Stage, epoch: int | None = None) -> None:
        if stage is not Stage.TRAIN:
            self.word_errors.clear()
            self.token_errors.clear()
            self.outputs.clear()

    def on_stage_end(self, stage: Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage is Stage.TRAIN:
            self.train_loss = stage_loss
            return
        self.stats = {
            "loss": stage_loss,
            "WER": self.word_errors.gather().summarize("WER"),
            "TER": self.token_errors.gather().summarize("WER"),
        }
        if stage is Stage.TEST:
            return
        # Log first, then save: killed in between, the epoch is logged again. The other way round it would be missing.
        self.hparams.train_logger.log_stats({"epoch": epoch}, {"loss": self.train_loss}, self.stats)
        self.checkpointer.save_and_keep_only(
            meta={"epoch": epoch, "seed": self.seed}, num_to_keep=1, verbosity=logging.DEBUG
        )

    # ------------------------------------------------------------------------- what a checkpoint has to hold besides

    def seconds(self) -> float:
        """Of training so far, summed over the processes of this run; what a kill threw away is not in it."""
        return self.seconds_before + (0.0 if self.started is None else time.monotonic() - self.started)

    def get_extra_state(self) -> dict[str, Any]:
        return {"train_loss": self.train_loss, "seconds": self.seconds(), "seed": self.seed}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.train_loss, self.seed = state["train_loss"], state["seed"]
        self.seconds_before, self.started = state["seconds"], time.monotonic()


def make_dataset(
    utterances: Sequence[Utterance], units: Characters, encoder: bl.CTCTextEncoder
) -> bl.DynamicItemDataset:
    """Cepstra with their text and its tokens."""
    cepstra = {each.name: each.frames for each in utterances}
    dataset = bl.DynamicItemDataset(
        {each.name: {"text": each.text, "num_frames": len(each.frames)} for each in utterances}
    )
    dataset.add_dynamic_item(cepstra.__getitem__, takes="id", provides="cepstra")
    dataset.add_dynamic_item(
        lambda text: encoder.encode_sequence_torch(units.spell(text)), takes="text", provides="tokens"
    )
    dataset.set_output_keys(["id", "cepstra", "text", "tokens"])
    return dataset


def learn_scale(brain: An4Brain, train: bl.DynamicItemDataset) -> None:
    """Take in mean and deviation of all features over the training set, as they are without augmentation."""
    scale: InputNormalization = brain.modules.scale
    batches = bl.SaveableDataLoader(train, **EVALUATION_LOADER)
    scale.learn(brain.features(batch.to(brain.device), Stage.VALID) for batch in batches)


# ---------------------------------------------------------------------------------------------------------- decoding


def decode(
    brain: An4Brain, texts: Mapping[str, str], ngram: WordNgram | None, **options: Any
) -> bl.ErrorRateStats:
    """Search the outputs of the last evaluation for words of the dictionary, and count the errors."""
    search = make_search(brain.units, brain.encoder, ngram, **options)
    errors = bl.ErrorRateStats()
    for name, output in brain.outputs.items():
        errors.append([name], [search(output)], [texts[name].split()])
    return errors


def choose_weights(
    brain: An4Brain, texts: Mapping[str, str], ngram: WordNgram, hparams: Mapping[str, Any]
) -> dict[str, float]:
    """What the n-gram and each word should weigh: the pair with the fewest errors on valid, whose outputs are there."""
    found = []
    for weight, score in itertools.product(hparams["ngram_weights"], hparams["word_scores"]):
        options = {"ngram_weight": weight, "word_score": score}
        found.append((decode(brain, texts, ngram, beam_size=hparams["beam_size"], **options), options))
    errors, options = min(found, key=lambda pair: pair[0].summarize("num_edits"))
    print(f"chosen on valid: {options}, WER {errors.summarize('WER'):.2f} %")
    return options


def test(
    brain: An4Brain,
    sets: Mapping[str, bl.DynamicItemDataset],
    utterances: Mapping[str, Sequence[Utterance]],
    ngram: WordNgram,
) -> tuple[dict[str, bl.ErrorRateStats], dict[str, float]]:
    """The errors on the test of each way to decode, and what was chosen on valid for the search."""
    texts = {each.name: each.text for split in utterances.values() for each in split}
    hparams = vars(brain.hparams)
    brain.evaluate(sets["valid"], test_loader_kwargs=EVALUATION_LOADER)
    options = choose_weights(brain, texts, ngram, hparams)
    brain.evaluate(sets["test"], test_loader_kwargs=EVALUATION_LOADER)
    size = {"beam_size": hparams["beam_size"]}
    return {
        "greedy": brain.word_errors,
        "lexicon": decode(brain, texts, None, **size),
        "n-gram": decode(brain, texts, ngram, **size, **options),
    }, options


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; `arguments` are those of the command line. Returns what results.json holds."""
    param_file, run_opts, overrides = bl.parse_arguments(arguments)
    overrides = bl.set_trial_apart(param_file, run_opts, overrides)
    hparams = bl.load_hyperpyyaml(param_file, overrides)
    folder = Path(hparams["output_folder"])
    torch.set_num_threads(hparams["num_threads"])  # first, so that env.txt tells of them
    bl.create_experiment_directory(folder, hyperparams_to_save=param_file, overrides=overrides)

    corpus = prepare_an4(hparams["data_folder"])
    utterances = {name: split[: hparams["num_utterances"]] for name, split in corpus.splits.items()}
    print(describe(corpus))
    train_texts = [each.text for each in utterances["train"]]
    units = hparams["units"](corpus.dictionary, train_texts)
    encoder = make_encoder(units)
    sets = {name: make_dataset(split, units, encoder) for name, split in utterances.items()}
    batches = bl.DynamicBatchSampler(
        sets["train"], hparams["max_batch_frames"], length_func="num_frames", seed=hparams["seed"]
    )
    print(batches.report())
    ngram = WordNgram(
        [text.split() for text in train_texts], hparams["ngram_order"], vocabulary=corpus.dictionary
    )

    brain = An4Brain(
        modules={"scale": hparams["scale"], "model": hparams["model"](num_tokens=len(encoder))},
        opt_class=hparams["optimizer"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
        extensions=[
            bl.LearningRate(hparams["schedule"](num_total=len(batches) * hparams["number_of_epochs"]))
        ],
        encoder=encoder,
        units=units,
    )
    learn_scale(brain, sets["train"])
    brain.fit(
        hparams["epoch_counter"],
        sets["train"],
        sets["valid"],
        train_loader_kwargs={"batch_sampler": batches},
        valid_loader_kwargs=EVALUATION_LOADER,
    )
    seconds = brain.seconds()
    errors, options = test(brain, sets, utterances, ngram)

    results = {
        "test": {
            name: {
                "WER": stats.summarize("WER"),
                "errors": stats.summarize("num_edits"),
                "words": stats.summarize("num_scored_tokens"),
            }
            for name, stats in errors.items()
        },
        "TER": brain.stats["TER"],
        "chosen_on_valid": options,
        "seed": brain.seed,
        "seconds": round(seconds, 1),
    }
    bl.write_results(folder, results)
    files = [folder / "results.json"]
    for name, stats in errors.items():
        files.append(folder / f"errors_{name}.txt")
        stats.write_stats(files[-1])
        print(f"test WER {stats.summarize('WER'):5.2f} %  {name}")
    files.append(folder / "confusions.png")
    plots.plot_confusions({name: errors[name] for name in ("greedy", "n-gram")}, files[-1])
    if (folder / "metrics.jsonl").exists():
        files.append(folder / "curves.png")
        rows = bl.read_metrics(folder / "metrics.jsonl", merge_by="epoch")
        plots.plot_curves(rows, files[-1], f"AN4, {type(units).__name__.lower()}, seed {brain.seed}")
    print(f"{seconds:.1f} s of training; results:", *files, sep="\n  ")
    return results


if __name__ == "__main__":
    main()

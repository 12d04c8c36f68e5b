#!/usr/bin/env python3
"""Train a small network to hear "yes" and "no" in recordings of eight words, with CTC over words.

    python recipes/yesno/train.py hparams/yesno/cnn.yaml --data_folder data/yesno --output_folder results/yesno

Whatever stands in the YAML can be given on the command line: ``--seed 7 --number_of_epochs 10``.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plots  # at the top: without matplotlib the run stops here, not after training
import torch
from prepare import SAMPLE_RATE, WORDS, Rows, ShuffledWords, describe, prepare_yesno
from torch import Tensor
from torch.nn import functional

import brainlib as bl
from brainlib import Stage
from brainlib.audio import absolute_lengths, read_audio


class YesNoBrain(bl.Brain):
    """Features, the network, the loss; words heard and errors counted on what is not trained on."""

    seconds_before = 0.0  # of training, in the processes before this one
    started: float | None = None  # when training began in this one

    def __init__(self, *args: Any, encoder: bl.CTCTextEncoder, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.encoder = encoder
        self.errors = bl.ErrorRateStats()
        self.train_loss = 0.0
        self.seed: int = self.hparams.seed  # a run that is resumed keeps the one that it began with

    # -------------------------------------------------------------------------------------------- what is computed

    def features(self, batch: bl.PaddedBatch, stage: Stage) -> tuple[Tensor, Tensor]:
        """Normalized log-mels, [B, F, M], and how many frames each recording has."""
        waves, lengths = batch.signal
        if stage is Stage.TRAIN:
            waves, lengths = self.hparams.speed(waves, lengths)
            waves = self.hparams.noise(waves, lengths)
        features = self.hparams.fbank(waves, lengths)
        counts = self.hparams.fbank.num_frames(absolute_lengths(lengths, waves.shape[1]))
        features = self.hparams.normalize(features, counts)
        if stage is Stage.TRAIN:
            features = self.hparams.masks(features, counts)
        return features, counts

    def compute_forward(self, batch: bl.PaddedBatch, stage: Stage) -> tuple[Tensor, Tensor]:
        features, counts = self.features(batch, stage)
        return self.modules.model(features), self.modules.model.num_frames(counts)

    def compute_objectives(
        self, predictions: tuple[Tensor, Tensor], batch: bl.PaddedBatch, stage: Stage
    ) -> Tensor:
        log_probs, counts = predictions
        if stage is not Stage.TRAIN:
            self.errors.append(batch.id, self.encoder.decode_greedy(log_probs, counts), batch.words)
        tokens = batch.tokens
        loss = functional.ctc_loss(
            log_probs.transpose(0, 1), tokens.data, counts, tokens.num_entries, reduction="sum"
        )
        return loss / batch.batchsize

    # ------------------------------------------------------------------------------------------ when it is computed

    def on_fit_start(self) -> None:
        super().on_fit_start()  # makes the optimizer, and goes on from the newest checkpoint if there is one
        self.started = time.monotonic()

    def on_stage_start(self, stage: Stage, epoch: int | None = None) -> None:
        if stage is not Stage.TRAIN:
            self.errors.clear()

    def on_stage_end(self, stage: Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage is Stage.TRAIN:
            self.train_loss = stage_loss
            return
        found = self.errors.gather()
        self.stats = {
            "loss": stage_loss,
            "WER": found.summarize("WER"),
            "errors": found.summarize("num_edits"),
            "words": found.summarize("num_scored_tokens"),
        }
        if stage is Stage.TEST:
            if bl.if_main_process():
                found.write_stats(Path(self.hparams.output_folder) / "errors.txt")
            return
        # Log first, then save: killed in between, the epoch is logged again. The other way round it would be missing.
        self.hparams.train_logger.log_stats({"epoch": epoch}, {"loss": self.train_loss}, self.stats)
        self.checkpointer.save_and_keep_only(
            meta={"epoch": epoch, "loss": stage_loss, "seed": self.seed},
            min_keys=["loss"],
            verbosity=logging.DEBUG,
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
    rows: Rows, encoder: bl.CTCTextEncoder, shuffled: ShuffledWords | None
) -> bl.DynamicItemDataset:
    """Signals with their words; put together anew each time where `shuffled` is given."""
    dataset = bl.DynamicItemDataset(rows)
    if shuffled is None:
        dataset.add_dynamic_item(read_recording, takes="path", provides="signal")
        words = "words"
    else:
        dataset.add_dynamic_item(shuffled, takes="id", provides=["signal", "new_words"])
        words = "new_words"
    dataset.add_dynamic_item(encoder.encode_sequence_torch, takes=words, provides="tokens")
    dataset.set_output_keys({"id": "id", "signal": "signal", "words": words, "tokens": "tokens"})
    return dataset


def read_recording(path: str) -> Tensor:
    """[time]."""
    return read_audio(path, sample_rate=SAMPLE_RATE)


def make_encoder() -> bl.CTCTextEncoder:
    """The blank, "no" and "yes"."""
    encoder = bl.CTCTextEncoder(blank_label="<blank>")
    encoder.update_from_iterable(WORDS.values(), sequence_input=False)
    return encoder


def draw_pictures(
    brain: YesNoBrain, item: dict[str, Any], folder: Path, results: dict[str, Any]
) -> list[Path]:
    """The curves, from metrics.jsonl, and one recording of the test."""
    curves, emissions = folder / "curves.png", folder / "emissions.png"
    brain.modules.eval()
    with torch.no_grad():
        batch = bl.PaddedBatch([item]).to(brain.device)
        features, _ = brain.features(batch, Stage.TEST)
        log_probs, counts = brain.compute_forward(batch, Stage.TEST)
    heard = brain.encoder.decode_greedy(log_probs, counts)[0]
    title = f"said: {' '.join(item['words'])}\nheard: {' '.join(heard)}"
    tokens = [brain.encoder.ind2lab[number] for number in range(len(brain.encoder))]
    seconds = len(item["signal"]) / SAMPLE_RATE
    plots.plot_emissions(features[0].cpu(), log_probs[0].cpu(), tokens, emissions, title, seconds)
    metrics = folder / "metrics.jsonl"
    rows = bl.read_metrics(metrics, merge_by="epoch") if metrics.exists() else []
    if not rows:  # nothing was trained here
        return [emissions]
    plots.plot_curves(rows, curves, f"YesNo, seed {results['seed']}", results["epoch"])
    return [curves, emissions]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; `arguments` are those of the command line. Returns what results.json holds."""
    param_file, run_opts, overrides = bl.parse_arguments(arguments)
    overrides = bl.set_trial_apart(param_file, run_opts, overrides)
    hparams = bl.load_hyperpyyaml(param_file, overrides)
    folder = Path(hparams["output_folder"])
    torch.set_num_threads(hparams["num_threads"])  # first, so that env.txt tells of them
    bl.create_experiment_directory(folder, hyperparams_to_save=param_file, overrides=overrides)

    splits = prepare_yesno(hparams["data_folder"])
    print(describe(splits))
    shuffled = None
    if hparams["shuffle_words"]:
        shuffled = ShuffledWords(splits["train"], hparams["most_words"])
        splits["train"] = {f"drawn-{number}": {} for number in range(hparams["items_per_epoch"])}
    print("whole recordings to train on" if shuffled is None else shuffled)
    encoder = make_encoder()
    sets = {
        name: make_dataset(rows, encoder, shuffled if name == "train" else None)
        for name, rows in splits.items()
    }
    bl.ddp_init_group(run_opts)
    num_batches = math.ceil(len(splits["train"]) / hparams["train_loader"]["batch_size"] / len(bl.gather(0)))
    schedule = hparams["schedule"](num_total=num_batches * hparams["number_of_epochs"])
    brain = YesNoBrain(
        modules={"model": hparams["model"]},
        opt_class=hparams["optimizer"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
        extensions=[bl.LearningRate(schedule)],
        encoder=encoder,
    )
    loader = {"batch_size": len(splits["valid"])}
    brain.fit(
        hparams["epoch_counter"],
        sets["train"],
        sets["valid"],
        train_loader_kwargs=hparams["train_loader"],
        valid_loader_kwargs=loader,
    )
    seconds = brain.seconds()
    brain.evaluate(sets["test"], min_key="loss", test_loader_kwargs=loader)
    if not bl.if_main_process():
        return {}
    chosen = brain.checkpointer.loaded  # by evaluate; None where nothing was trained
    results = {
        "test": brain.stats,
        "epoch": chosen.meta["epoch"] if chosen else None,
        "seed": chosen.meta["seed"] if chosen else brain.seed,
        "seconds": round(seconds, 1),
    }
    pictures = draw_pictures(brain, sets["test"][0], folder, results)
    bl.write_results(folder, results)
    stats = results["test"]
    print(
        f"test WER {stats['WER']:.2f} % ({stats['errors']} of {stats['words']} words), {seconds:.1f} s of training"
    )
    print("results:", *[folder / name for name in ("results.json", "errors.txt")], *pictures, sep="\n  ")
    return results


if __name__ == "__main__":
    main()

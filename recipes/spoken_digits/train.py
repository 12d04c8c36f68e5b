#!/usr/bin/env python3
"""Train a model on spoken digits: which digit it is, or who says it. Start it, kill it, start it again: it goes on.

    python recipes/spoken_digits/train.py hparams/spoken_digits/digits.yaml --output_folder results/spoken_digits

Whatever stands in the YAML can be given on the command line: ``--hold_out theo``, ``--data_folder DIR``.
"""

from __future__ import annotations

import json
import logging
import math
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plots  # at the top: without matplotlib the run stops here, not after training
import torch
from prepare import SPEAKERS, prepare_spoken_digits
from torch import Tensor
from torch.nn import functional

import brainlib as bl
from brainlib import Stage
from brainlib.audio import AudioReader

PARTS = ("train", "valid", "test")
EVALUATION_LOADER = {"batch_size": 100}


class SpokenDigitsBrain(bl.Brain):
    """From waves to classes; counts right answers beside the loss; logs and saves once an epoch."""

    encoder: bl.CategoricalEncoder  # what the outputs stand for; saved with the run
    datasets: dict[str, bl.DynamicItemDataset]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accuracy = bl.AccuracyStats()  # in training: nothing is read back from the device
        self.answers = bl.ClassificationStats()
        self.stats: dict[Stage, dict[str, float]] = {}
        self.seed: int = self.hparams.seed  # a run that is resumed keeps the one that it began with
        self.time_before, self.started = (0.0, 0.0), (0.0, 0.0)

    # -------------------------------------------------------------------------------------------- what is computed

    def compute_forward(self, batch: bl.PaddedBatch, stage: Stage) -> Tensor:
        """Augmentations leave everything as it is outside of training."""
        waves, num_samples, voices = batch.wave.data, batch.wave.num_entries, batch.voice
        if stage is Stage.TEST and self.hparams.listenings:
            return self.listen_again(waves, num_samples, voices)
        speeds = self.modules.speed.draw(len(waves))
        waves, num_samples = self.modules.speed.played(waves, num_samples, speeds)
        waves = self.modules.noise(self.modules.shift(waves, num_samples), num_samples)
        features, num_frames = self.normalized(waves, num_samples, voices, speeds)
        return self.classify(self.modules.warp(features, num_frames), num_frames)

    def log_mels(self, waves: Tensor, num_samples: Tensor) -> tuple[Tensor, Tensor]:
        features = self.modules.features(self.modules.level(waves, num_samples), num_samples)
        return features, self.modules.features.num_frames(num_samples)

    def normalized(
        self, waves: Tensor, num_samples: Tensor, voices: Tensor, speeds: Tensor
    ) -> tuple[Tensor, Tensor]:
        features, num_frames = self.log_mels(waves, num_samples)
        rows = self.rows(voices, speeds) if self.by_voice else None
        return self.modules.normalize(features, num_frames, rows), num_frames

    @property
    def by_voice(self) -> bool:
        return self.modules.normalize.norm_type == "speaker"

    def rows(self, voices: Tensor, speeds: Tensor) -> Tensor:
        """Where `normalize` keeps the statistics of a voice, which is another one at each speed."""
        known = self.modules.speed.speeds
        return voices * len(known) + torch.tensor([known.index(speed) for speed in speeds.tolist()]).to(
            voices
        )

    def classify(self, features: Tensor, num_frames: Tensor) -> Tensor:
        return self.modules.model(self.modules.mask(features, num_frames), num_frames)

    def listen_again(self, waves: Tensor, num_samples: Tensor, voices: Tensor) -> Tensor:
        """The mean of what is heard at several speeds, each warped in several ways, as logarithms of probabilities."""
        heard = []
        for speed in self.hparams.listenings["speeds"]:
            speeds = torch.full((len(waves),), speed)
            played = self.modules.speed.played(waves, num_samples, speeds)
            features, num_frames = self.normalized(*played, voices, speeds)
            for factor in self.hparams.listenings["warps"]:
                warped = self.modules.warp.warped(features, features.new_full((len(features),), factor))
                heard.append(self.classify(warped, num_frames).softmax(1))
        return torch.stack(heard).mean(0).log()

    def compute_objectives(self, predictions: Tensor, batch: bl.PaddedBatch, stage: Stage) -> Tensor:
        if stage is Stage.TRAIN:
            self.accuracy.append(predictions.detach(), batch.label)
        else:
            told, right = (self.encoder.decode_torch(each) for each in (predictions.argmax(1), batch.label))
            self.answers.append(batch.id, told, right)
        if stage is Stage.TEST:
            self.confidences |= dict(zip(batch.id, predictions.softmax(1).amax(1).tolist(), strict=True))
        smoothing = self.hparams.label_smoothing if stage is Stage.TRAIN else 0.0
        return functional.cross_entropy(predictions, batch.label, label_smoothing=smoothing)

    # ------------------------------------------------------------------------------------------ when it is computed

    def on_fit_start(self) -> None:
        super().on_fit_start()  # makes the optimizer, and goes on from the newest checkpoint if there is one
        self.started = now()
        if self.by_voice and not self.modules.normalize.count.any():  # they are in the checkpoint
            self.learn_voices()

    @torch.no_grad()
    def learn_voices(self) -> None:
        """The mean of each voice at each speed, over all that there is of it, whatever was said: as Kaldi's recipes
        normalize a speaker, one of the test too.
        """
        for dataset in self.datasets.values():
            for batch in bl.SaveableDataLoader(dataset, **EVALUATION_LOADER):
                batch = batch.to(self.device)
                for speed in self.modules.speed.speeds:
                    speeds = torch.full((len(batch.voice),), speed)
                    played = self.modules.speed.played(batch.wave.data, batch.wave.num_entries, speeds)
                    self.modules.normalize.learn([(*self.log_mels(*played), self.rows(batch.voice, speeds))])

    def on_stage_start(self, stage: Stage, epoch: int | None = None) -> None:
        self.accuracy.clear() if stage is Stage.TRAIN else self.answers.clear()
        self.confidences: dict[str, float] = {}

    def on_stage_end(self, stage: Stage, stage_loss: float, epoch: int | None = None) -> None:
        if stage is Stage.TRAIN:
            self.stats[stage] = {"loss": stage_loss, "accuracy": self.accuracy.gather().summarize()}
            return
        self.answers = self.answers.gather()
        self.stats[stage] = {"loss": stage_loss, "accuracy": self.answers.summarize("accuracy")}
        if stage is Stage.TEST:
            self.confidences = {
                id_: each for part in bl.gather(self.confidences) for id_, each in part.items()
            }
            return
        # Log first, then save: killed in between, the epoch is logged again. The other way round it would be missing.
        self.hparams.train_logger.log_stats(
            {"epoch": epoch, "lr": self.optimizer.param_groups[0]["lr"]},  # of the last update
            self.stats[Stage.TRAIN],
            self.stats[Stage.VALID],
        )
        self.checkpointer.save_and_keep_only(
            meta={"epoch": epoch, "accuracy": self.stats[stage]["accuracy"], "seed": self.seed},
            verbosity=logging.DEBUG,
        )

    # ------------------------------------------------------------------------- what a checkpoint has to hold besides

    def time_of_training(self) -> tuple[float, float]:
        """Seconds by the clock and of CPU, summed over the processes of this run; without what a kill threw away."""
        if self.started == (0.0, 0.0):
            return self.time_before
        seconds, cpu_seconds = (
            b + n - s for b, n, s in zip(self.time_before, now(), self.started, strict=True)
        )
        return seconds, cpu_seconds

    def get_extra_state(self) -> dict[str, Any]:
        return {"time": list(self.time_of_training()), "seed": self.seed}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.time_before, self.started = tuple(state["time"]), now()
        self.seed = state["seed"]


def now() -> tuple[float, float]:
    """The clock, and the CPU time of this process and of its workers that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), sum(each.ru_utime + each.ru_stime for each in used)


def make_datasets(hparams: dict[str, Any], folder: Path, encoder: bl.CategoricalEncoder) -> dict[str, Any]:
    """Train, valid and test from their manifests, with what is computed for an item."""
    root = {"data_root": hparams["data_folder"]}
    types = {"digit": str, "speaker": str}
    datasets = {
        part: bl.DynamicItemDataset.from_csv(folder / f"{part}.csv", root, types=types) for part in PARTS
    }
    encoder.update_from_iterable(sorted(set(datasets["train"].values(hparams["label"]))))
    bl.add_dynamic_item(datasets, AudioReader(hparams["sample_rate"]), takes="wav", provides="wave")
    bl.add_dynamic_item(datasets, encoder.encode_label, takes=hparams["label"], provides="label")
    bl.add_dynamic_item(datasets, SPEAKERS.index, takes="speaker", provides="voice")
    bl.set_output_keys(datasets, ["id", "wave", "label", "voice"])
    return datasets


def collect_results(brain: SpokenDigitsBrain, folder: Path) -> dict[str, Any]:
    """What results.json holds."""
    chosen = brain.checkpointer.loaded  # by evaluate; None where there is none, so that nothing was trained
    results = {
        "test": brain.stats[Stage.TEST],
        "valid": brain.stats.get(Stage.VALID),  # of the last epoch
        "label": brain.hparams.label,
        "hold_out": brain.hparams.hold_out,
        "epoch": chosen.meta.get("epoch") if chosen else None,  # None: it ended inside one
        "checkpoint": chosen.path.name if chosen else None,
        "seed": chosen.meta.get("seed", brain.seed) if chosen else brain.seed,
    }
    seconds, cpu_seconds = brain.time_of_training()
    if not brain.test_only:
        return {**results, "seconds": round(seconds, 2), "cpu_seconds": round(cpu_seconds, 2)}
    # The time that training took, and what came of it on valid, is known only to the run that trained.
    former = folder / "results.json"
    known = json.loads(former.read_text()) if former.exists() else {}
    return results | {key: known[key] for key in ("valid", "seconds", "cpu_seconds") if key in known}


def picture_of(brain: SpokenDigitsBrain, wave: Tensor) -> Any:
    """The log-mels of one recording, as numpy, [frames, mels]."""
    return brain.modules.features(wave.to(brain.device)).cpu().numpy()


def draw_pictures(brain: SpokenDigitsBrain, test: Any, folder: Path, results: dict[str, Any]) -> list[Path]:
    """The pictures of the run, from metrics.jsonl and from the answers of the last `evaluate`."""
    curves, confusion, mistakes = folder / "curves.png", folder / "confusion.png", folder / "mistakes.png"
    plots.plot_confusion(brain.answers.summarize("confusion_matrix"), confusion)
    answers = zip(brain.answers.ids, brain.answers.predictions, brain.answers.targets, strict=True)
    wrong = [(id_, told, right) for id_, told, right in answers if told != right]
    wrong.sort(key=lambda each: (-brain.confidences[each[0]], each[0]))
    shown = [
        (*each, brain.confidences[each[0]], picture_of(brain, item["wave"]))
        for each, item in zip(wrong, test.subset([id_ for id_, *_ in wrong[: plots.MOST]]), strict=False)
    ]
    plots.plot_mistakes(shown, len(wrong), mistakes)
    metrics = folder / "metrics.jsonl"
    rows = bl.read_metrics(metrics, merge_by="epoch") if metrics.exists() else []
    if not rows:  # nothing was trained here
        return [confusion, mistakes]
    held_out = f", {results['hold_out']} held out" if results["hold_out"] else ""
    plots.plot_curves(rows, curves, f"{results['label']} of spoken digits{held_out}, seed {results['seed']}")
    return [curves, confusion, mistakes]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; `arguments` are those of the command line. Returns what results.json holds."""
    param_file, run_opts, overrides = bl.parse_arguments(arguments)
    overrides = bl.set_trial_apart(param_file, run_opts, overrides)
    hparams = bl.load_hyperpyyaml(param_file, overrides)
    folder = Path(hparams["output_folder"])
    torch.set_num_threads(hparams["num_threads"])  # first, so that env.txt tells of them
    bl.create_experiment_directory(folder, hyperparams_to_save=param_file, overrides=overrides)

    bl.ddp_init_group(run_opts)
    manifests = folder / "manifests"
    split = (hparams["hold_out"], hparams["valid_speaker"])
    bl.run_on_main(lambda: print(prepare_spoken_digits(hparams["data_folder"], manifests, *split)))
    encoder = bl.CategoricalEncoder()
    datasets = make_datasets(hparams, manifests, encoder)
    encoder.expect_len(hparams["num_classes"])
    sampler = hparams["train_sampler"](datasets["train"])
    print(sampler.report())
    num_batches = math.ceil(
        len(sampler.plan(seed=0, epoch=0)) / len(bl.gather(0))
    )  # nearly that in each epoch

    brain = SpokenDigitsBrain(
        modules=hparams["modules"],
        opt_class=hparams["optimizer"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
        extensions=[
            bl.LearningRate(hparams["schedule"](num_total=num_batches * hparams["number_of_epochs"]))
        ],
    )
    brain.encoder, brain.datasets = encoder, datasets
    brain.fit(
        hparams["epoch_counter"],
        datasets["train"],
        datasets["valid"],
        train_loader_kwargs={"batch_sampler": sampler, **hparams["train_loader"]},
        valid_loader_kwargs=EVALUATION_LOADER,
    )
    # The last epoch, whatever valid says: the rate has gone down to 0 by then, and there is nothing left to choose.
    brain.evaluate(datasets["test"], checkpoint="last", test_loader_kwargs=EVALUATION_LOADER)

    if not bl.if_main_process():
        return {}
    results = collect_results(brain, folder)
    pictures = draw_pictures(brain, datasets["test"], folder, results)
    brain.answers.write_stats(folder / "mistakes.txt")
    bl.write_results(folder, results)
    print(f"test accuracy {results['test']['accuracy']:.4f}, loss {results['test']['loss']:.4f}")
    print("results and pictures:", *[folder / "results.json", folder / "mistakes.txt", *pictures], sep="\n  ")
    return results


if __name__ == "__main__":
    main()

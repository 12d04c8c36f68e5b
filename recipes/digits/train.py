#!/usr/bin/env python3
"""Train a model on handwritten digits. Start it, kill it, start it again: it goes on and ends with the same numbers.

    python recipes/digits/train.py hparams/digits/cnn.yaml --output_folder results/cnn

Whatever stands in the YAML can be given on the command line: ``--lr 1e-4``, ``--dataset mnist --data_folder DIR``.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import plots  # at the top: without matplotlib the run stops here, not after training
import torch
from prepare import Split, describe, prepare_digits
from torch import Tensor

import brainlib as bl
from brainlib import Stage

EVALUATION_LOADER = {"batch_size": 500}  # larger than in training: there are no gradients to keep


class DigitsBrain(bl.Brain):
    """Counts right answers beside the loss; logs and saves once an epoch."""

    test_split: Split | None = None  # watched after each epoch, where it is given
    seconds_before = 0.0  # of training, in the processes before this one
    started: float | None = None  # when training began in this one

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_right = {stage: torch.tensor(0, device=self.device) for stage in Stage}
        self.num_seen = dict.fromkeys(Stage, 0)
        self.stats: dict[Stage, dict[str, float]] = {}
        self.seed: int = self.hparams.seed  # a run that is resumed keeps the one that it began with

    # -------------------------------------------------------------------------------------------- what is computed

    def compute_forward(self, batch: dict[str, Tensor], stage: Stage) -> Tensor:
        images = batch["image"]
        if stage is Stage.TRAIN and self.hparams.augment is not None:
            images = self.hparams.augment(images)
        return self.modules.model(images)

    def compute_objectives(self, predictions: Tensor, batch: dict[str, Tensor], stage: Stage) -> Tensor:
        digits, confidences = self.hparams.loss.read(predictions.detach())
        self.num_right[stage] += (digits == batch["label"]).sum()  # a tensor: .item() would make a GPU wait
        self.num_seen[stage] += len(digits)
        if stage is Stage.TEST:
            self.test_readings.append((digits.cpu(), confidences.cpu()))
        return self.hparams.loss(predictions, batch["label"])

    # ------------------------------------------------------------------------------------------ when it is computed

    def init_optimizers(self) -> None:
        """One optimizer, with L2 where it is wanted."""
        self.optimizer = self.opt_class(l2_groups(self.modules.model, self.hparams.l2, self.hparams.l2_on))
        self.optimizers_dict = {"optimizer": self.optimizer}

    def on_fit_start(self) -> None:
        super().on_fit_start()  # makes the optimizer, and goes on from the newest checkpoint if there is one
        self.started = time.monotonic()

    def on_stage_start(self, stage: Stage, epoch: int | None = None) -> None:
        self.num_right[stage] = torch.tensor(0, device=self.device)
        self.num_seen[stage] = 0
        if stage is Stage.TEST:
            self.test_readings: list[tuple[Tensor, Tensor]] = []

    def on_stage_end(self, stage: Stage, stage_loss: float, epoch: int | None = None) -> None:
        counts = bl.gather(
            (self.num_right[stage].item(), self.num_seen[stage])
        )  # each rank has counted its own
        accuracy = sum(right for right, _ in counts) / sum(seen for _, seen in counts)
        if stage is Stage.TEST:  # whole batches were dealt out in turn
            rounds = itertools.zip_longest(*bl.gather(self.test_readings))
            self.test_readings = [reading for round_ in rounds for reading in round_ if reading is not None]
        self.stats[stage] = {"loss": stage_loss, "accuracy": accuracy}
        if stage is not Stage.VALID:
            return
        # Log first, then save: killed in between, the epoch is logged again. The other way round it would be missing.
        test_stats = self.watch_test()
        meta = {"epoch": epoch, "lr": self.optimizer.param_groups[0]["lr"]}  # of the last update
        self.hparams.train_logger.log_stats(
            meta, self.stats[Stage.TRAIN], self.stats[Stage.VALID], test_stats
        )
        self.checkpointer.save_and_keep_only(
            meta={"epoch": epoch, "accuracy": accuracy, "seed": self.seed},
            max_keys=["accuracy"],
            verbosity=logging.DEBUG,
        )

    def watch_test(self) -> dict[str, float] | None:
        """Accuracy on the test images with the weights of now: to be looked at, never to choose by."""
        if self.test_split is None:
            return None
        num_right = 0
        batches = zip(self.test_split.images.split(500), self.test_split.labels.split(500), strict=True)
        for images, labels in batches:
            digits, _ = self.hparams.loss.read(self.modules.model(images.to(self.device)))
            num_right += int((digits.cpu() == labels).sum())
        return {"accuracy": num_right / len(self.test_split)}

    # ------------------------------------------------------------------------- what a checkpoint has to hold besides

    def seconds(self) -> float:
        """Of training so far, summed over the processes of this run; what a kill threw away is not in it."""
        return self.seconds_before + (0.0 if self.started is None else time.monotonic() - self.started)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "num_right": int(self.num_right[Stage.TRAIN]),
            "num_seen": self.num_seen[Stage.TRAIN],
            "train_stats": self.stats.get(Stage.TRAIN),
            "seconds": self.seconds(),
            "seed": self.seed,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.num_right[Stage.TRAIN] = torch.tensor(state["num_right"], device=self.device)
        self.num_seen[Stage.TRAIN] = state["num_seen"]
        if state["train_stats"] is not None:
            self.stats[Stage.TRAIN] = state["train_stats"]
        self.seconds_before, self.started = state["seconds"], time.monotonic()
        self.seed = state["seed"]


def l2_groups(model: torch.nn.Module, l2: float, l2_on: str) -> list[dict[str, Any]]:
    """Parameter groups with L2 on the parameters whose name fits ``l2_on`` and none on the others.

    Args:
        model: whose parameters are trained.
        l2: strength, the optimizers' ``weight_decay``; try 1e-5 to 1e-3, 0 is off.
        l2_on: a pattern such as "*" for all, "*.weight" to spare the biases, "layers.0.*" for one layer.
    """
    chosen, others = [], []
    for name, parameter in model.named_parameters():
        (chosen if fnmatchcase(name, l2_on) else others).append(parameter)
    if not chosen:
        names = ", ".join(name for name, _ in model.named_parameters())
        raise ValueError(f"l2_on is {l2_on!r}, which fits the name of no parameter. There are: {names}.")
    groups = [{"params": chosen, "weight_decay": l2}]
    return groups + ([{"params": others, "weight_decay": 0.0}] if others else [])


def show_learning_rates(
    hparams: dict[str, Any], run_opts: dict[str, Any], train: Split, folder: Path
) -> None:
    """The loss while the learning rate grows, as a picture, for a choice of `lr`; nothing else is trained."""
    brain = DigitsBrain({"model": hparams["model"]}, hparams["optimizer"], hparams, run_opts)
    curve = bl.find_lr(brain, train, hparams["train_loader"])
    picture = curve.plot(folder / "learning_rates.png")
    print(
        f"try lr {curve.suggestion:.2g}" if curve.suggestion else "the loss falls at no rate",
        picture,
        sep="\n",
    )


def collect_results(brain: DigitsBrain, folder: Path, seconds: float) -> dict[str, Any]:
    """What results.json holds: the test of the epoch that is best on valid, and where that came from."""
    chosen = (
        brain.checkpointer.loaded
    )  # by evaluate; None where there is no checkpoint, so that nothing was trained
    results = {
        "test": brain.stats[Stage.TEST],
        "epoch": chosen.meta["epoch"] if chosen else None,
        "checkpoint": chosen.path.name if chosen else None,
        "seed": chosen.meta["seed"] if chosen else brain.seed,
    }
    if brain.test_only:  # the time that training took is known only to the run that trained
        former = folder / "results.json"
        known = json.loads(former.read_text()).get("seconds") if former.exists() else None
    else:
        known = round(seconds, 2)
    return results if known is None else {**results, "seconds": known}


def draw_pictures(brain: DigitsBrain, test: Split, folder: Path, results: dict[str, Any]) -> list[Path]:
    """The pictures of the run, from metrics.jsonl and from the readings of the last `evaluate`."""
    curves, confusion, mistakes = folder / "curves.png", folder / "confusion.png", folder / "mistakes.png"
    digits = torch.cat([digits for digits, _ in brain.test_readings])
    confidences = torch.cat([confidences for _, confidences in brain.test_readings])
    images, labels = test.images[: len(digits)], test.labels[: len(digits)]  # a debug run reads some only
    plots.plot_confusion(labels, digits, confusion)
    plots.plot_mistakes(images, labels, digits, confidences, mistakes)
    metrics = folder / "metrics.jsonl"
    rows = bl.read_metrics(metrics, merge_by="epoch") if metrics.exists() else []
    if not rows:  # nothing was trained here
        return [confusion, mistakes]
    title = f"{type(brain.modules.model).__name__} on {brain.hparams.dataset} digits, seed {results['seed']}"
    plots.plot_curves(rows, curves, title, results["epoch"])
    return [curves, confusion, mistakes]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the recipe; `arguments` are those of the command line. Returns what results.json holds."""
    param_file, run_opts, overrides = bl.parse_arguments(arguments)
    overrides = bl.set_trial_apart(param_file, run_opts, overrides)
    hparams = bl.load_hyperpyyaml(param_file, overrides)
    folder = Path(hparams["output_folder"])
    torch.set_num_threads(hparams["num_threads"])  # first, so that env.txt tells of them
    bl.create_experiment_directory(folder, hyperparams_to_save=param_file, overrides=overrides)

    splits = prepare_digits(hparams["dataset"], hparams["data_folder"])
    print(describe(splits))
    if hparams["find_lr"]:
        show_learning_rates(hparams, run_opts, splits["train"], folder)
        return {}
    bl.ddp_init_group(run_opts)
    num_batches = math.ceil(len(splits["train"]) / hparams["train_loader"]["batch_size"] / len(bl.gather(0)))
    schedule = hparams["schedule"](num_total=num_batches * hparams["number_of_epochs"])

    brain = DigitsBrain(
        modules={"model": hparams["model"]},
        opt_class=hparams["optimizer"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
        extensions=[bl.LearningRate(schedule)],
    )
    brain.test_split = splits["test"] if hparams["watch_test"] else None
    brain.fit(
        hparams["epoch_counter"],
        splits["train"],
        splits["valid"],
        train_loader_kwargs=hparams["train_loader"],
        valid_loader_kwargs=EVALUATION_LOADER,
    )
    seconds = brain.seconds()
    brain.evaluate(splits["test"], max_key="accuracy", test_loader_kwargs=EVALUATION_LOADER)

    if not bl.if_main_process():
        return {}
    results = collect_results(brain, folder, seconds)
    pictures = draw_pictures(brain, splits["test"], folder, results)
    bl.write_results(folder, results)
    after = f", after {results['seconds']:.1f} s of training" if "seconds" in results else ""
    print(f"test accuracy {results['test']['accuracy']:.4f}, loss {results['test']['loss']:.4f}{after}")
    print("results and pictures:", *[folder / "results.json", *pictures], sep="\n  ")
    return results


if __name__ == "__main__":
    main()

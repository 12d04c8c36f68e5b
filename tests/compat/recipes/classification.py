"""A classifier, written in SpeechBrain's style with its trainer alone: it runs where there is no speechbrain."""

import sys

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.utils.distributed import run_on_main


class WordBrain(sb.Brain):
    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        features, _ = batch.features
        return self.modules.model(features)

    def compute_objectives(self, predictions, batch, stage):
        targets = batch.word_encoded.data.squeeze(1)
        if stage != sb.Stage.TRAIN:
            self.error_metrics.append(batch.id, predictions.argmax(-1).tolist(), targets.tolist())
        return torch.nn.functional.cross_entropy(predictions, targets)

    def on_stage_start(self, stage, epoch=None):
        if stage != sb.Stage.TRAIN:
            self.error_metrics = self.hparams.error_stats()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.TRAIN:
            self.train_loss = stage_loss
            return
        stats = {"loss": stage_loss, "error": 1 - self.error_metrics.summarize("accuracy")}
        if stage == sb.Stage.VALID:
            old_lr, new_lr = self.hparams.lr_annealing(stage_loss)
            sb.nnet.schedulers.update_learning_rate(self.optimizer, new_lr)
            self.hparams.train_logger.log_stats(
                {"Epoch": epoch, "lr": old_lr}, train_stats={"loss": self.train_loss}, valid_stats=stats
            )
            self.checkpointer.save_and_keep_only(meta=stats, min_keys=["error"])
        else:
            self.hparams.train_logger.log_stats(
                {"Epoch loaded": self.hparams.epoch_counter.current}, test_stats=stats
            )


def dataio_prep(hparams):
    words = ["one", "two", "three"]

    def rows(first, count):
        return {f"utt{n}": {"seed": n, "word": words[n % 3]} for n in range(first, first + count)}

    @sb.utils.data_pipeline.takes("seed", "word")
    @sb.utils.data_pipeline.provides("features")
    def feature_pipeline(seed, word):
        noise = torch.randn(8, generator=torch.Generator().manual_seed(int(seed)))
        return noise + 3 * torch.eye(8)[words.index(word)]

    label_encoder = sb.dataio.encoder.CategoricalEncoder()

    @sb.utils.data_pipeline.takes("word")
    @sb.utils.data_pipeline.provides("word", "word_encoded")
    def label_pipeline(word):
        yield word
        yield label_encoder.encode_label_torch(word)

    datasets = {
        "train": sb.dataio.dataset.DynamicItemDataset(rows(0, 12)),
        "valid": sb.dataio.dataset.DynamicItemDataset(rows(12, 6)),
        "test": sb.dataio.dataset.DynamicItemDataset(rows(18, 6)),
    }
    sb.dataio.dataset.add_dynamic_item(list(datasets.values()), feature_pipeline)
    sb.dataio.dataset.add_dynamic_item(list(datasets.values()), label_pipeline)
    sb.dataio.dataset.set_output_keys(list(datasets.values()), ["id", "features", "word_encoded"])
    run_on_main(
        label_encoder.load_or_create,
        kwargs={
            "path": hparams["save_folder"] + "/label_encoder.txt",
            "from_didatasets": [datasets["train"]],
            "output_key": "word",
        },
    )
    return datasets


if __name__ == "__main__":
    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    sb.utils.distributed.ddp_init_group(run_opts)
    with open(hparams_file) as fin:
        hparams = load_hyperpyyaml(fin, overrides)
    sb.create_experiment_directory(
        experiment_directory=hparams["output_folder"], hyperparams_to_save=hparams_file, overrides=overrides
    )
    datasets = dataio_prep(hparams)
    brain = WordBrain(
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
    )
    brain.fit(
        brain.hparams.epoch_counter,
        datasets["train"],
        datasets["valid"],
        train_loader_kwargs=hparams["dataloader_options"],
        valid_loader_kwargs={"batch_size": 6},
    )
    brain.evaluate(datasets["test"], min_key="error", test_loader_kwargs={"batch_size": 6})

"""CTC, written in SpeechBrain's style, with its layers, dynamic batches and a schedule stepped after each batch."""

import sys

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.dataio.batch import PaddedBatch
from speechbrain.dataio.dataio import length_to_mask
from speechbrain.dataio.sampler import DynamicBatchSampler
from speechbrain.decoders import ctc_greedy_decode


class CTCBrain(sb.Brain):
    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        feats, lens = batch.feats
        feats = self.modules.normalize(feats, lens, epoch=self.hparams.epoch_counter.current)
        mask = length_to_mask((lens * feats.shape[1]).round(), feats.shape[1])
        hidden = self.modules.encoder(feats * mask.unsqueeze(-1))
        return self.hparams.log_softmax(self.modules.ctc_lin(hidden)), lens

    def compute_objectives(self, predictions, batch, stage):
        log_probs, lens = predictions
        tokens, token_lens = batch.tokens
        if stage != sb.Stage.TRAIN:
            decoded = ctc_greedy_decode(log_probs, lens, blank_id=self.hparams.blank_index)
            target = sb.utils.data_utils.undo_padding(tokens, token_lens)
            self.wer.append(batch.id, decoded, target)
        return self.hparams.ctc_cost(log_probs, tokens, lens, token_lens)

    def on_fit_batch_end(self, batch, outputs, loss, should_step):
        if should_step:
            self.hparams.noam_annealing(self.optimizer)

    def on_stage_start(self, stage, epoch=None):
        if stage != sb.Stage.TRAIN:
            self.wer = self.hparams.error_rate_computer()

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.TRAIN:
            self.train_stats = {"loss": stage_loss}
            return
        stats = {"loss": stage_loss, "WER": self.wer.summarize("error_rate")}
        self.hparams.train_logger.log_stats({"epoch": epoch}, self.train_stats, valid_stats=stats)
        self.checkpointer.save_and_keep_only(meta={"WER": stats["WER"]}, min_keys=["WER"])


def dataio_prepare(hparams):
    data = {
        f"utt{n}": {"duration": (2 + n % 3) / 10, "token_ids": [1 + (n + k) % 3 for k in range(2)]}
        for n in range(9)
    }
    dataset = sb.dataio.dataset.DynamicItemDataset(data)

    @sb.utils.data_pipeline.takes("duration", "token_ids")
    @sb.utils.data_pipeline.provides("feats", "tokens")
    def pipeline(duration, token_ids):
        frames = torch.arange(round(100 * duration)) * len(token_ids) // round(100 * duration)
        yield torch.eye(6)[torch.tensor(token_ids)[frames]]
        yield torch.LongTensor(token_ids)

    sb.dataio.dataset.add_dynamic_item([dataset], pipeline)
    sb.dataio.dataset.set_output_keys([dataset], ["id", "feats", "tokens"])
    return dataset


if __name__ == "__main__":
    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    with open(hparams_file) as fin:
        hparams = load_hyperpyyaml(fin, overrides)
    sb.create_experiment_directory(hparams["output_folder"], hparams_file, overrides)
    dataset = dataio_prepare(hparams)
    sampler = DynamicBatchSampler(
        dataset, max_batch_length=1.0, num_buckets=2, length_func=lambda item: item["duration"], shuffle=True
    )
    brain = CTCBrain(
        hparams["modules"], hparams["opt_class"], hparams, run_opts, checkpointer=hparams["checkpointer"]
    )
    brain.fit(
        hparams["epoch_counter"],
        dataset,
        dataset,
        train_loader_kwargs={"batch_sampler": sampler, "collate_fn": PaddedBatch},
        valid_loader_kwargs={"batch_size": 4},
    )

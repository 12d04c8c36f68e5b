"""A GAN, written in SpeechBrain's style: fit_batch, evaluate_batch and init_optimizers are its own."""

import sys

import speechbrain as sb
import torch
from hyperpyyaml import load_hyperpyyaml


class GanBrain(sb.Brain):
    def compute_forward(self, batch, stage):
        noise, real = batch
        return self.modules.generator(noise.to(self.device)), real.to(self.device)

    def compute_objectives(self, predictions, batch, stage):
        fake, real = predictions
        score_real, score_fake = self.modules.discriminator(real), self.modules.discriminator(fake.detach())
        loss_d = torch.mean((score_real - 1) ** 2) + torch.mean(score_fake**2)
        loss_g = torch.mean((self.modules.discriminator(fake) - 1) ** 2)
        return {"D": loss_d, "G": loss_g}

    def fit_batch(self, batch):
        outputs = self.compute_forward(batch, sb.Stage.TRAIN)
        loss_d = self.compute_objectives(outputs, batch, sb.Stage.TRAIN)["D"]
        self.optimizer_d.zero_grad()
        loss_d.backward()
        self.optimizer_d.step()
        loss_g = self.compute_objectives(outputs, batch, sb.Stage.TRAIN)["G"]
        self.optimizer_g.zero_grad()
        loss_g.backward()
        self.optimizer_g.step()
        return loss_g.detach().cpu()

    def evaluate_batch(self, batch, stage):
        outputs = self.compute_forward(batch, stage)
        return self.compute_objectives(outputs, batch, stage)["G"].detach().cpu()

    def init_optimizers(self):
        self.optimizer_g = self.hparams.g_opt_class(self.modules.generator.parameters())
        self.optimizer_d = self.hparams.d_opt_class(self.modules.discriminator.parameters())
        self.optimizers_dict = {"optimizer_g": self.optimizer_g, "optimizer_d": self.optimizer_d}
        if self.checkpointer is not None:
            self.checkpointer.add_recoverable("optimizer_g", self.optimizer_g)
            self.checkpointer.add_recoverable("optimizer_d", self.optimizer_d)

    def on_stage_end(self, stage, stage_loss, epoch=None):
        if stage == sb.Stage.VALID:
            self.checkpointer.save_and_keep_only(meta={"loss": stage_loss}, min_keys=["loss"])


if __name__ == "__main__":
    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    with open(hparams_file) as fin:
        hparams = load_hyperpyyaml(fin, overrides)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(4, 2, generator=generator), torch.randn(4, 4, generator=generator)) for _ in range(3)
    ]
    brain = GanBrain(
        modules=hparams["modules"], hparams=hparams, run_opts=run_opts, checkpointer=hparams["checkpointer"]
    )
    brain.fit(hparams["epoch_counter"], batches, batches)

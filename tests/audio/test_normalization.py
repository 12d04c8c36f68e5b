from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import brainlib as bl
from brainlib.audio import InputNormalization

COUNTS = torch.tensor([30, 17, 1, 22])
SPEAKERS = torch.tensor([0, 2, 0, 2])


def corpus(num_batches: int = 5) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Features with an offset that would eat a naive float32 sum of squares, and rubbish behind the ends."""
    return [(1000 + 3 * torch.randn(4, 30, 5), COUNTS, SPEAKERS) for _ in range(num_batches)]


def frames_of(batches: Any, speaker: int | None = None) -> Tensor:
    return torch.cat(
        [
            features[place, :count]
            for features, counts, speakers in batches
            for place, count in enumerate(counts.tolist())
            if speaker is None or int(speakers[place]) == speaker
        ]
    ).double()


def test_global_statistics_are_those_of_all_frames() -> None:
    batches = corpus()
    norm = InputNormalization("global", input_size=5)
    norm.learn(batches)
    frames = frames_of(batches)
    assert norm.count.tolist() == [len(frames)] == [5 * 70]
    assert torch.allclose(norm.mean[0], frames.mean(dim=0), rtol=1e-12)
    assert torch.allclose(norm.squares[0], (frames - frames.mean(dim=0)).square().sum(dim=0), rtol=1e-9)
    features, counts, _ = batches[0]
    normalized = norm.eval()(features, counts)
    expected = (features - frames.mean(dim=0)) / frames.std(dim=0, correction=0)
    assert normalized.dtype == torch.float32
    assert torch.allclose(normalized[1, :17], expected[1, :17].float(), atol=1e-3)
    assert not normalized[1, 17:].any() and not normalized[2, 1:].any()
    assert norm.count.tolist() == [350]  # evaluation learns nothing


def test_speakers_each_have_their_own_and_strangers_are_taken_by_themselves() -> None:
    batches = corpus()
    norm = InputNormalization("speaker", input_size=5, num_speakers=4)
    norm.learn(batches)
    for speaker in (0, 2):
        frames = frames_of(batches, speaker)
        assert norm.count[speaker] == len(frames)
        assert torch.allclose(norm.mean[speaker], frames.mean(dim=0), rtol=1e-12)
    assert norm.count.tolist() == [155, 0, 195, 0]
    features, counts, _ = batches[0]
    normalized = norm.eval()(features, counts, torch.tensor([0, 1, -1, 3]))
    own = InputNormalization("utterance")(features, counts)
    assert torch.allclose(normalized[1:], own[1:], atol=1e-5)
    assert not torch.allclose(normalized[0], own[0], atol=1e-2)


def test_an_utterance_by_itself_is_the_same_alone_and_in_a_batch() -> None:
    features, counts, _ = corpus(1)[0]
    norm = InputNormalization("utterance")
    batch = norm(features, counts)
    for place, count in enumerate(counts.tolist()):
        alone = norm(features[place, :count])
        assert torch.allclose(batch[place, :count], alone, atol=1e-6)
        assert torch.allclose(alone.mean(dim=0), torch.zeros(5), atol=1e-3)
        if count > 1:
            assert torch.allclose(alone.std(dim=0, correction=0), torch.ones(5), atol=1e-3)
    assert not norm.state_dict() and batch.isfinite().all()


def test_parts_can_be_switched_off() -> None:
    features = torch.randn(2, 10, 3) + 5
    only_mean = InputNormalization("utterance", std_norm=False)(features)
    assert torch.allclose(only_mean, features - features.mean(dim=1, keepdim=True), atol=1e-5)
    only_std = InputNormalization("utterance", mean_norm=False)(features)
    assert torch.allclose(only_std, features / features.std(dim=1, correction=0, keepdim=True), atol=1e-4)


@pytest.mark.parametrize(("norm_type", "more"), [("global", {}), ("speaker", {"num_speakers": 3})])
def test_learned_in_parts_along_the_way_or_merged_it_is_the_same(norm_type: str, more: Any) -> None:
    batches = corpus()
    whole, along, first, second = (InputNormalization(norm_type, input_size=5, **more) for _ in range(4))
    whole.learn(batches)
    for features, counts, speakers in batches:
        along.train()(features, counts, speakers if more else None)
    first.learn(batches[:2])
    second.learn(batches[2:])
    second.merge(first)
    for other in (along, second):
        for name, expected in whole.state_dict().items():
            assert torch.allclose(other.state_dict()[name].double(), expected.double(), rtol=1e-9), name
    along.learn_in_training = False
    along(*batches[0][:2], batches[0][2] if more else None)
    assert torch.equal(along.count, whole.count)


def test_statistics_are_saved_with_a_run_and_a_cut_one_ends_alike(tmp_path: Path) -> None:
    class Normalizing(bl.Brain):
        def compute_forward(self, batch: Any, stage: bl.Stage) -> Any:
            return self.modules.model(self.modules.normalize(batch["features"], batch["lengths"]))

        def compute_objectives(self, predictions: Any, batch: Any, stage: bl.Stage) -> Any:
            return predictions.square().mean()

        def on_fit_batch_end(self, batch: Any, outputs: Any, loss: Any, should_step: bool) -> None:
            if self.optimizer_step == self.hparams.dies_at:
                raise KeyError("dies here")

    def make(folder: Path, dies_at: int = 0) -> bl.Brain:
        torch.manual_seed(0)
        modules = {
            "normalize": InputNormalization("global", input_size=5),
            "model": torch.nn.Linear(5, 1),
        }
        return Normalizing(
            modules,
            lambda parameters: torch.optim.SGD(parameters, 0.1),
            {"seed": 3, "dies_at": dies_at},
            {"noprogressbar": True, "ckpt_interval_steps": 1},
            bl.Checkpointer(folder, background=False),
        )

    torch.manual_seed(1)
    batches = [{"features": f, "lengths": c} for f, c, _ in corpus(6)]
    uncut = make(tmp_path / "uncut")
    uncut.fit(range(2), batches)
    with pytest.raises(KeyError, match="dies here"):
        make(tmp_path / "cut", dies_at=4).fit(range(2), batches)
    resumed = make(tmp_path / "cut")
    resumed.fit(range(2), batches)
    assert resumed.modules.normalize.count.tolist() == [2 * 6 * 70]
    for name, expected in uncut.modules.state_dict().items():
        assert torch.equal(resumed.modules.state_dict()[name], expected), name


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="norm_type='batch': one of 'global', 'speaker', 'utterance'"):
        InputNormalization("batch")
    with pytest.raises(ValueError, match="norm_type='global' needs input_size"):
        InputNormalization()
    with pytest.raises(ValueError, match="norm_type='speaker' needs num_speakers"):
        InputNormalization("speaker", 5)
    with pytest.raises(ValueError, match="num_speakers=3 has no effect with norm_type='global'"):
        InputNormalization("global", 5, 3)
    norm = InputNormalization("speaker", 5, 3)
    features = torch.randn(2, 4, 5)
    with pytest.raises(ValueError, match="needs to be told the speakers"):
        norm(features)
    with pytest.raises(ValueError, match="speakers from 0 to 3, and num_speakers is 3: give 0 to 2, or -1"):
        norm(features, None, torch.tensor([0, 3]))
    with pytest.raises(ValueError, match="the features have 4 numbers a frame, and input_size is 5"):
        norm(features[..., :4], None, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="no statistics have been learned yet: call learn"):
        norm.eval()(features, None, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="learns with the first training batch, and this is before it"):
        norm(features, None, torch.tensor([0, 1]))
    frozen = InputNormalization("global", 4, learn_in_training=False)
    with pytest.raises(ValueError, match="or let it learn in training mode"):
        frozen(features[..., :4])
    with pytest.raises(ValueError, match="norm_type='utterance' has no statistics"):
        InputNormalization("utterance").learn([])
    with pytest.raises(ValueError, match="merge what is alike"):
        norm.merge(InputNormalization("global", 5))

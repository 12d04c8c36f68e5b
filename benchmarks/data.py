"""What the data layer costs beside the reading itself, how dynamic batches are made, and a million rows in memory.

*Reading*: the 3,000 spoken digits of FSDD from disk to padded batches of 32, by a loop written by hand, and by a
`DynamicItemDataset` with `PaddedBatch`. In this process by processor time: the files are cached. By two workers beside
a bare `DataLoader` with two, over 30,000 reads in random order, by the clock and from the first batch. Then with about
1 ms of work an item (log-mel filterbank, noise, masks): what two workers bring, for which two cores have to be free. A
Brain seeds each item besides, which has a line of its own and no bar here (`resume.py` has it). All of these read by
soundfile. SpeechBrain's pipeline is timed where it is installed, with that, and with its own reader; that is what ours
with our own reader is compared with.

*Batching*: 281,241 lengths like those of LibriSpeech's training set: 68 % normal with mean 14.2 and deviation 1.5 s,
cut at 1.3 and 24.5; 29 % uniform from 1.4 to 13 s; 3 % uniform from 15.5 to 17.5 s; two in 10,000 uniform from 20 to
35 s. Batches of 600 s, dealt out among 8 ranks. ρ is Spearman's, between the longest item of a batch and its place in
the epoch. Whom an item meets is looked at over many epochs for 100 items, from the shortest to the longest: from which
hundredths of all items, by length, one came into a batch with it.

*A million rows*: id, path, duration, speaker and a short text, 64 bytes of text a row, as CSV and as JSON lines. Memory
is ``Anonymous`` of ``/proc/<pid>/smaps_rollup``; of workers, which are forked, the larger growth of that and of
``Private_Dirty``, since ``Anonymous`` counts a page alike before and after it was copied.

Ways of doing the same are timed in turns, one torch thread, and what they are compared with is timed twice (A/A). How
far it is from itself is what the machine can tell: a ratio stands only if its distance to the bar is at least twice
that, else it is "too noisy". What counts is the best of the rounds. It prints a table and a line of JSON, and exits
with 1 where a bar that stands is missed.

    python benchmarks/data.py --rounds 7 --only reading
"""

from __future__ import annotations

import argparse
import csv
import gc
import importlib.util
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from figures import Figure, as_json, in_turns, status
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, RandomSampler

import brainlib as bl
from brainlib.audio import read_audio
from brainlib.data.loader import make_dataloader
from brainlib.data.manifests import read_csv, read_jsonl
from brainlib.data.sources import source_of

ROOT = Path(__file__).resolve().parent.parent
BATCH_SIZE = 32
OURS, THEIRS = "    by brainlib.audio.read_audio", "    SpeechBrain's pipeline, by its read_audio"
NUM_READS = 30_000
NUM_LENGTHS = 281_241
MAX_LENGTH, NUM_RANKS = 600.0, 8
NUM_ROWS = 1_000_000
KINDS = ("Anonymous", "Private_Dirty")  # the second sees what a forked process has copied, the first does not


def rate_figures(
    names: Sequence[str], bars: Sequence[float | None], best: Sequence[float], base: str
) -> list[Figure]:
    """`best` begins with the reference and ends with it once more."""
    reference, noise = max(best[0], best[-1]), abs(best[0] / best[-1] - 1)
    figures = [Figure(base, reference, "items/s"), Figure(f"    {base}, its distance from itself", noise)]
    for name, bar, each in zip(names, bars, best[1:-1], strict=True):
        figures.append(Figure(name, each / reference, f"x ({each:,.0f}/s)", bar, noise, at_least=True))
    return figures


# -------------------------------------------------------------------------------------------------------------- reading
def find_fsdd() -> Path | None:
    named = os.environ.get("BRAINLIB_DATA")
    for home in (*([Path(named)] if named else []), ROOT.parent / "shared" / "data"):
        if (home / "fsdd" / "manifest.csv").is_file():
            return home / "fsdd"
    return None


def read_wave(path: str) -> Tensor:
    return torch.from_numpy(soundfile.read(path, dtype="float32")[0])


@cache
def mel_filters(num_mels: int = 40, num_bins: int = 129) -> Tensor:
    """Triangles, evenly spread: which ones does not matter for their cost."""
    centers = torch.linspace(0, num_bins - 1, num_mels + 2)
    bins = torch.arange(num_bins)[:, None]
    rising, falling = (bins - centers[:-2]) / centers[1], (centers[2:] - bins) / centers[1]
    return torch.minimum(rising, falling).clamp(min=0)


def features(wave: Tensor) -> Tensor:
    """Noise, log-mel filterbank, two masks, and once more: about a millisecond a digit."""
    for _ in range(3):
        noisy = wave + 0.01 * torch.randn(len(wave))
        spectrum = torch.stft(
            noisy, 256, 80, window=torch.hann_window(256), return_complex=True, pad_mode="constant"
        ).abs()
        mels = (spectrum.square().T @ mel_filters() + 1e-6).log()
        first = int(torch.randint(len(mels), (1,)))
        mels[first : first + 5] = 0.0
        mels[:, 3:7] = 0.0
    return mels


class ByHand(Dataset[Any]):
    """What people write: paths and labels in lists."""

    def __init__(self, paths: list[str], labels: list[int], work: Callable[[Tensor], Tensor]) -> None:
        self.paths, self.labels, self.work = paths, labels, work

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.work(read_wave(self.paths[index])), self.labels[index]


def collate_by_hand(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    waves = [wave for wave, _ in items]
    lengths = torch.tensor([len(wave) for wave in waves])
    return pad_sequence(waves, True), lengths, torch.tensor([label for _, label in items])


def as_it_is(wave: Tensor) -> Tensor:
    return wave


class Reading:
    """The same digits by every form."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with open(folder / "manifest.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.paths = [str(folder / row["path"]) for row in rows]
        self.labels = [int(row["digit"]) for row in rows]

    def ours(
        self,
        work: Callable[[Tensor], Tensor] = as_it_is,
        reader: Callable[[str], Tensor] = read_wave,
    ) -> bl.DynamicItemDataset:
        data = bl.DynamicItemDataset(
            {
                f"{n:04}": {"wav": path, "digit": label}
                for n, (path, label) in enumerate(zip(self.paths, self.labels, strict=True))
            }
        )
        data.add_dynamic_item(lambda wav: work(reader(wav)), takes="wav", provides="signal")
        data.set_output_keys(["id", "signal", "digit"])
        return data

    def by_hand(self, work: Callable[[Tensor], Tensor] = as_it_is) -> ByHand:
        return ByHand(self.paths, self.labels, work)

    def loop(self) -> Iterator[Any]:
        items = self.by_hand()
        for start in range(0, len(items), BATCH_SIZE):
            yield collate_by_hand([items[n] for n in range(start, min(start + BATCH_SIZE, len(items)))])

    def in_one_process(self, num_rounds: int) -> list[Figure]:
        num, data, own = len(self.paths), self.ours(), self.ours(reader=read_audio)
        forms: dict[str, Callable[[], Any]] = {
            "a plain loop": self.loop,
            "a bare DataLoader": lambda: DataLoader(
                self.by_hand(), batch_size=BATCH_SIZE, collate_fn=collate_by_hand
            ),
            "DynamicItemDataset and PaddedBatch": lambda: make_dataloader(data, batch_size=BATCH_SIZE),
            "    with a seed for each item, as a Brain reads": lambda: source_of(
                make_dataloader(data, batch_size=BATCH_SIZE), "train_set"
            ).read(0, 0),
            OURS: lambda: make_dataloader(own, batch_size=BATCH_SIZE),
        }
        bars: list[float | None] = [None, 0.85, None, None]
        if importlib.util.find_spec("speechbrain"):
            from speechbrain.dataio import dataio  # type: ignore[import-not-found]

            same, theirs = self.speechbrain(read_wave), self.speechbrain(dataio.read_audio)
            forms |= {"    SpeechBrain's pipeline": lambda: same, THEIRS: lambda: theirs}
            bars += [None, None]
        *names, again = [*forms, "a plain loop"]
        best = in_turns(
            [lambda make=forms[name]: num / processor_seconds_of(make()) for name in (*names, again)],
            num_rounds,
            max,
        )
        figures = rate_figures(names[1:], bars, best, "a plain loop")
        if THEIRS in names:
            ratio = best[names.index(OURS)] / best[names.index(THEIRS)]
            figures.append(
                Figure("    the one by the other", ratio, "x", 1.5, figures[1].value, at_least=True)
            )
        return figures

    def speechbrain(self, reader: Callable[[str], Tensor]) -> Any:
        from speechbrain.dataio.batch import PaddedBatch  # type: ignore[import-not-found]
        from speechbrain.dataio.dataset import DynamicItemDataset  # type: ignore[import-not-found]

        data = DynamicItemDataset(
            {f"{n:04}": {"wav": path, "digit": self.labels[n]} for n, path in enumerate(self.paths)}
        )
        data.add_dynamic_item(reader, takes="wav", provides="signal")
        data.set_output_keys(["id", "signal", "digit"])
        return DataLoader(data, batch_size=BATCH_SIZE, collate_fn=PaddedBatch)

    def with_two_workers(self, num_rounds: int, num_reads: int) -> list[Figure]:
        def options(data: Any) -> dict[str, Any]:
            sampler = RandomSampler(data, replacement=True, num_samples=num_reads)
            return {"batch_size": BATCH_SIZE, "sampler": sampler, "num_workers": 2}

        hand, data = self.by_hand(), self.ours()
        forms = [
            lambda: DataLoader(hand, collate_fn=collate_by_hand, **options(hand)),
            lambda: make_dataloader(data, **options(data)),
            lambda: source_of(make_dataloader(data, **options(data)), "train_set").read(0, 0),
            lambda: DataLoader(hand, collate_fn=collate_by_hand, **options(hand)),
        ]
        best = in_turns([lambda make=make: num_reads / seconds_of(make()) for make in forms], num_rounds, max)
        names = [
            "two workers: DynamicItemDataset and PaddedBatch",
            "    two workers: with a seed for each item",
        ]
        return rate_figures(names, [0.9, None], best, "two workers, a bare DataLoader")

    def with_work(self, num_rounds: int) -> list[Figure]:
        data = self.ours(features)
        waves = [read_wave(path) for path in self.paths[:200]]
        start = time.process_time()
        for wave in waves:
            features(wave)
        work = (time.process_time() - start) / len(waves) * 1000
        num = len(self.paths)
        best = in_turns(
            [
                lambda n=n: num / seconds_of(make_dataloader(data, batch_size=BATCH_SIZE, num_workers=n))
                for n in (0, 2, 0)
            ],
            max(1, num_rounds // 3),
            max,
        )
        figures = rate_figures(["two workers, with work on each item"], [1.6], best, "one process, with work")
        return [Figure("    the work on an item", work, "ms"), *figures]


def seconds_of(batches: Any) -> float:
    """How long it takes to walk through, by the clock; with workers, which have to be started, from the first batch."""
    iterator = iter(batches)
    start = time.perf_counter()
    if getattr(batches, "num_workers", 1):
        next(iterator)
        start = time.perf_counter()
    for _ in iterator:
        pass
    return time.perf_counter() - start


def processor_seconds_of(batches: Any) -> float:
    """The same by the time that this process was on a processor: others on the machine do not count."""
    start = time.process_time()
    for _ in batches:
        pass
    return time.process_time() - start


# ------------------------------------------------------------------------------------------------------------- batching
def lengths_like_librispeech() -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(960)
    which = generator.random(NUM_LENGTHS)
    lengths = generator.normal(14.2, 1.5, NUM_LENGTHS).clip(1.3, 24.5)
    lengths = np.where(which > 0.68, generator.uniform(1.4, 13.0, NUM_LENGTHS), lengths)
    lengths = np.where(which > 0.97, generator.uniform(15.5, 17.5, NUM_LENGTHS), lengths)
    lengths = np.where(generator.random(NUM_LENGTHS) < 2e-4, generator.uniform(20, 35, NUM_LENGTHS), lengths)
    return lengths.round(3)


def rank_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def batching(num_epochs: int) -> list[Figure]:
    lengths = lengths_like_librispeech()
    start = time.perf_counter()
    sampler = bl.DynamicBatchSampler(range(NUM_LENGTHS), MAX_LENGTH, lengths_list=lengths, seed=1)
    first = next(iter(sampler))
    begun = time.perf_counter() - start
    padding, rho, longest, uneven, complete = 0.0, 0.0, 0.0, 0.0, bool(first)
    for epoch in range(5):
        plan, report = sampler.plan(1, epoch), sampler.report(NUM_RANKS, epoch)
        tops = np.maximum.reduceat(lengths[plan.indices], plan.starts[:-1])
        rho = max(rho, abs(np.corrcoef(rank_of(tops), np.arange(len(plan)))[0, 1]))
        padding, longest = max(padding, report.padding), max(longest, report.longest)
        uneven = max(uneven, report.imbalance)
        complete &= bool((np.sort(plan.indices) == np.arange(NUM_LENGTHS)).all())
    return [
        Figure("start: lengths learnt, first batch given", begun, "s", 1.0),
        Figure("padding, the worst of five epochs", 100 * padding, "%", 2.5),
        Figure("longest batch", longest, "s", MAX_LENGTH),
        Figure("every item once", float(complete), "", 1.0, at_least=True),
        Figure("Spearman's ρ of length and place", rho, "", 0.1),
        Figure(f"slowest of {NUM_RANKS} ranks a round over even work", 100 * uneven, "%", 2.0),
        Figure(
            "hundredths of all that an item meets, the least",
            meetings(sampler, num_epochs),
            "%",
            20.0,
            at_least=True,
        ),
    ]


def meetings(sampler: bl.DynamicBatchSampler, num_epochs: int) -> float:
    rank = rank_of(sampler.lengths)
    by_length = np.argsort(rank)
    items = by_length[np.linspace(0, NUM_LENGTHS - 1, 100).astype(np.int64)]
    met = np.zeros((len(items), 100), bool)
    for epoch in range(num_epochs):
        plan = sampler.plan(1, epoch)
        place = np.empty(NUM_LENGTHS, np.int64)
        place[plan.indices] = np.arange(NUM_LENGTHS)
        batches = np.searchsorted(plan.starts, place[items], side="right") - 1
        for row, (item, batch) in enumerate(zip(items, batches.tolist(), strict=True)):
            others = [other for other in plan.batch(batch) if other != item]
            met[row, rank[others] * 100 // NUM_LENGTHS] = True
    return 100 * float(met.mean(axis=1).min())


# ------------------------------------------------------------------------------------------------------- a million rows
def memory(kind: str) -> float:
    """MiB of this process, "Anonymous" or "Private_Dirty"."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/smaps_rollup has no line {kind}")


def write_manifests(folder: Path) -> None:
    with open(folder / "rows.csv", "w") as table, open(folder / "rows.jsonl", "w") as lines:
        table.write("ID,wav,duration,spk,text\n")
        for n in range(NUM_ROWS):
            speaker, seconds = f"{n // 400:04}", 1 + (n * 37 % 1500) / 100
            id_, wav, text = (
                f"{speaker}-{n % 400:04}-{n:07}",
                f"{speaker}/{n:07}.flac",
                "so many words here are",
            )
            table.write(f"{id_},{wav},{seconds},{speaker},{text}\n")
            lines.write(
                f'{{"id": "{id_}", "wav": "{wav}", "duration": {seconds}, "spk": "{speaker}", "text": "{text}"}}\n'
            )


def in_a_child(act: Callable[[], Any]) -> Any:
    """What `act` returns in a forked process, so that memory is that of a fresh one; JSON can hold it."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writes, json.dumps(act()).encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        told = json.loads(file.read())
    os.waitpid(child, 0)
    return told


class Growth:
    """What a forked process has more for itself after a million reads of random items."""

    def __init__(self, data: bl.DynamicItemDataset) -> None:
        self.data = data

    def __call__(self) -> float:
        gc.freeze()  # as the workers of our loaders do
        before, generator = [memory(kind) for kind in KINDS], np.random.default_rng(os.getpid())
        for _ in range(NUM_ROWS // 1000):
            for index in generator.integers(0, NUM_ROWS, 1000).tolist():
                self.data[index]
        return max(memory(kind) - was for kind, was in zip(KINDS, before, strict=True))


def rows_in_memory(path: Path, read: Callable[[Path], Any]) -> list[float]:
    gc.collect()
    before, start, used = memory("Anonymous"), time.perf_counter(), time.process_time()
    data = bl.DynamicItemDataset(read(path))
    seconds, used = time.perf_counter() - start, time.process_time() - used
    grown = memory("Anonymous") - before
    workers = [in_a_child(Growth(data)) for _ in range(2)]
    return [NUM_ROWS / seconds, NUM_ROWS / used, grown, max(workers)]


def million_rows() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as name:
        write_manifests(Path(name))
        for kind, file, read in (("CSV", "rows.csv", read_csv), ("JSON lines", "rows.jsonl", read_jsonl)):
            rate, of_cpu, grown, worker = in_a_child(
                lambda file=file, read=read: rows_in_memory(Path(name, file), read)
            )
            figures += [
                Figure(f"{kind}: rows read, by processor time", of_cpu, "/s", 200_000, at_least=True),
                Figure(f"    {kind}, by the clock", rate, "/s"),
                Figure(f"    {kind}, growth of the process", grown, "MB", 100.0),
                Figure(f"    {kind}, growth of a worker in 1,000,000 reads", worker, "MB", 20.0),
            ]
    return figures


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of what is timed (default 7)")
    parser.add_argument(
        "--reads", type=int, default=NUM_READS, help=f"with two workers (default {NUM_READS:,})"
    )
    parser.add_argument("--epochs", type=int, default=600, help="over which items meet (default 600)")
    parser.add_argument("--only", choices=["reading", "batching", "rows"], help="one part")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    logging.getLogger("brainlib").setLevel(logging.ERROR)
    figures: list[Figure] = []
    folder = find_fsdd()
    if arguments.only in (None, "rows") and Path("/proc/self/smaps_rollup").exists():
        figures += million_rows()
    if arguments.only in (None, "batching"):
        figures += batching(arguments.epochs)
    if arguments.only in (None, "reading"):
        if folder is None:
            print(
                "FSDD is not there: let BRAINLIB_DATA name the folder that holds fsdd/. Reading is left out"
            )
        else:
            reading = Reading(folder)
            figures += reading.in_one_process(arguments.rounds)
            figures += reading.with_two_workers(arguments.rounds, arguments.reads)
            figures += reading.with_work(arguments.rounds)
    print(f"{arguments.rounds} rounds, one thread a process, torch {torch.__version__}\n")
    for figure in figures:
        print(f"{figure.name:52}{figure.value:12,.3f} {figure.unit:16}{figure.limit:>12}   {figure.verdict}")
    print(as_json("data", figures))
    return status(figures)


if __name__ == "__main__":
    sys.exit(main())

"""Planted faults are named; the same Brain without one, and each of the seven, are passed in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import brainlib as bl
from brainlib.checkup import telling, user_code
from brainlib.checkup.report import Report
from tests.checkup.faults import FAULTS, HEALTHY, AsAdvised, Fault, Items
from tests.contracts import brains

VALID = [next(iter(torch.utils.data.DataLoader(Items(), batch_size=12)))]


def examined(fault: Fault, folder: Path) -> Report:
    brain, train_set, loader = fault.make(folder)
    return bl.doctor(brain, train_set, VALID, loader)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    report = examined(fault, tmp_path / "save")
    assert not report
    (finding,) = report.findings  # one fault, one finding
    assert finding.check == fault.check
    told = " ".join(str(finding).split())
    assert all(word in told for word in fault.names), told
    todo = " ".join(finding.todo.split())
    assert todo and all(word in todo for word in fault.todo), todo
    assert not (tmp_path / "save").exists()


def test_without_a_fault_nothing_is_found(tmp_path: Path) -> None:
    report = examined(HEALTHY, tmp_path / "save")
    assert report and not report.findings, str(report)
    assert [check for check, _ in report.checks] == [
        "same again",
        "cut and resume",
        "cut and resume",
        "accumulation",
    ]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "loader", [lambda: {"sampler": AsAdvised()}, lambda: {"shuffle": True}], ids=["randperm", "shuffle"]
)
def test_an_order_as_the_doctor_advises_it_is_passed(loader: Any, tmp_path: Path) -> None:
    report = examined(Fault("", (), loader=loader), tmp_path / "save")
    assert report and not report.findings, str(report)


def test_there_is_something_to_do_about_all_that_is_found_in_code() -> None:
    assert set(telling._REMEDIES) == set(user_code._CHANGING.values())


@pytest.mark.parametrize("cls", brains.SEVEN, ids=lambda cls: cls.__name__)
def test_the_seven_are_passed_in_silence(cls: type[brains.Plain], tmp_path: Path) -> None:
    brain = brains.make(cls, bl.Checkpointer(tmp_path), grad_accumulation_factor=2)
    report = bl.doctor(brain, brains.Items(), brains.VALID, brains.SHUFFLED)
    assert report, str(report)
    assert "equal bits in 10 batches of 3 epochs" in str(report)
    assert str(report).count("equal bits to the end") == 2
    assert "give the same gradient" in str(report)

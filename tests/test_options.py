from __future__ import annotations

import copy
import dataclasses
import logging
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from brainlib.common.option_fields import OptionGroup, option, options_of
from brainlib.config import load_hyperpyyaml, parse_arguments
from brainlib.options import RunOptions, all_options
from brainlib.update.options import UpdateOptions

# Names and defaults are a promise to users: whoever changes one changes this list, and tells why in the CHANGELOG.
SPEECHBRAIN = {
    "test_only": False,
    "debug": False,
    "debug_batches": 2,
    "debug_epochs": 2,
    "debug_persistently": False,
    "device": None,
    "data_parallel_backend": False,
    "data_parallel_count": -1,
    "distributed_backend": "nccl",
    "distributed_launch": False,
    "find_unused_parameters": False,
    "jit": False,
    "jit_module_keys": None,
    "compile": False,
    "compile_module_keys": None,
    "compile_mode": "default",
    "compile_using_fullgraph": False,
    "compile_using_dynamic_shape_tracing": False,
    "precision": "fp32",
    "eval_precision": "fp32",
    "auto_mix_prec": False,
    "bfloat16_mix_prec": False,
    "max_grad_norm": 5.0,
    "skip_nonfinite_grads": False,
    "nonfinite_patience": 3,
    "noprogressbar": False,
    "ckpt_interval_minutes": 15.0,
    "ckpt_interval_steps": 0,
    "grad_accumulation_factor": 1,
    "optimizer_step_limit": None,
    "tqdm_colored_bar": False,
    "tqdm_barcolor": {"train": "GREEN", "valid": "MAGENTA", "test": "CYAN"},
    "remove_vector_weight_decay": False,
    "profile_training": False,
    "profile_warmup": 5,
    "profile_steps": 5,
    "log_config": None,
}
OURS = {
    "profiler_options": None,
    "check_shape": None,
    "check_content": None,
    "check_batches": 2,
    "overfit_batches": None,
    "sanity_valid_batches": 0,
    "detect_anomaly": False,
    "benchmark_max_step": None,
    "benchmark_batch_size": None,
    "count_flops": False,
    "peak_flops": None,
    "parallel": "auto",
    "dist_timeout_seconds": 600.0,
    "static_graph": False,
    "gradient_as_bucket_view": False,
    "fused": False,
    "loss_average": "items",
    "ckpt_async": True,
    "num_snapshots": None,
    "on_save_error": "raise",
    "resume": "auto",
    "init_from": None,
    "tf32": None,
    "channels_last": False,
    "limit_train_batches": None,
    "limit_valid_batches": None,
    "valid_interval_steps": 0,
    "progress_seconds": 0.1,
    "stop_grace_seconds": 10.0,
    "max_time": None,
}


def message_of(*args: object, **kwargs: object) -> str:
    with pytest.raises(ValueError) as caught:
        RunOptions.resolve(*args, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)


# -- names and defaults ------------------------------------------------------------------------------------------------


def test_names_and_defaults_are_frozen() -> None:
    options = RunOptions()
    assert {name: options[name] for name in RunOptions.names()} == {**SPEECHBRAIN, **OURS}
    assert set(RunOptions.speechbrain_names()) == set(SPEECHBRAIN)


def test_no_name_stands_in_two_groups_or_is_an_attribute_of_the_composition() -> None:
    names = [
        each.name for group in {each.group for each in all_options().values()} for each in options_of(group)
    ]
    assert len(names) == len(set(names))
    assert not set(names) & set(vars(RunOptions()) | vars(RunOptions))


def test_every_option_is_explained() -> None:
    assert all(each.help.endswith((".", "…")) and len(each.help) > 15 for each in all_options().values())


def test_a_new_option_is_one_line() -> None:
    @dataclasses.dataclass(frozen=True)
    class Coffee(OptionGroup):
        cups: int | None = option(None, "How many cups.", ours=True, minimum=1)

    (cups,) = options_of(Coffee)
    assert (cups.read("3", "run_opts"), cups.read("null", "run_opts"), cups.ours) == (3, None, True)
    assert cups.takes == "a whole number, at least 1, or null"


def test_options_are_read_only_and_can_be_copied() -> None:
    options = RunOptions.resolve({"debug": True})
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.debug = False
    for twin in (copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert twin == options and twin.debug


def test_an_unknown_attribute_names_the_nearest() -> None:
    with pytest.raises(AttributeError, match="no run option 'precison'. Did you mean 'precision'"):
        RunOptions().precison  # noqa: B018
    assert "max_grad_norm" in dir(RunOptions())


def test_a_collaborator_gets_its_own_group() -> None:
    assert RunOptions.resolve({"nonfinite_patience": 1}).update_options == UpdateOptions(nonfinite_patience=1)


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_later_place_wins() -> None:
    hparams = {"debug_batches": 3, "debug_epochs": 3, "run_opts": {"debug_epochs": 4, "debug": True}}
    options = RunOptions.resolve({"debug": False}, hparams)
    assert (options.debug_batches, options.debug_epochs, options.debug) == (3, 4, False)
    assert options.explicit == {"debug_batches", "debug_epochs", "debug"}
    assert options.differing() == {"debug_batches": 3, "debug_epochs": 4}


def test_names_of_ours_at_the_top_level_are_the_users_own_keys() -> None:
    options = RunOptions.resolve(hparams={"limit_train_batches": "mine", "loss_average": object()})
    assert not options.explicit


def test_dashes_and_underscores_are_alike_everywhere() -> None:
    options = RunOptions.resolve(
        {"debug-epochs": 5}, {"debug-batches": 4, "run_opts": {"limit-train-batches": 3}}
    )
    assert (options.debug_epochs, options.debug_batches, options.limit_train_batches) == (5, 4, 3)
    assert "given twice (in run_opts): as 'debug', 'debug'" not in message_of(
        {"max-grad-norm": 1, "max_grad_norm": 2}
    )
    assert "as 'max-grad-norm', 'max_grad_norm'" in message_of({"max-grad-norm": 1, "max_grad_norm": 2})


def test_of_another_run_options_only_what_was_set_counts() -> None:
    first = RunOptions.resolve({"debug_batches": 7})
    options = RunOptions.resolve(first, {"debug_batches": 3, "debug_epochs": 3})
    assert (options.debug_batches, options.debug_epochs) == (7, 3)


def test_unknown_names_are_errors_that_name_the_nearest() -> None:
    assert "no run option 'precison' (in run_opts). Did you mean 'precision'?" in message_of(
        {"precison": "bf16"}
    )
    assert "(under 'run_opts' in hparams). Did you mean 'limit_train_batches'?" in message_of(
        None, {"run_opts": {"limit_train_batch": 3}}
    )
    assert "no run option 3" in message_of({3: True})
    assert "'run_opts' is 5, but it takes options" in message_of(None, {"run_opts": 5})
    assert "run_opts is 'debug', but it takes a dict" in message_of("debug")


def test_only_options_are_read_from_hparams() -> None:
    read: list[str] = []

    class Watched(dict):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> object:
            read.append(key)
            return super().__getitem__(key)

    hparams = Watched(lr=0.1, debug=True, model=object())
    RunOptions.resolve(None, hparams)
    assert read == ["debug"]


def test_keys_that_resemble_an_option() -> None:
    keys = [
        "lr",
        "precison",
        "checkpoint_interval_minutes",
        "limit_train_batches",
        "grad_accumulation",
        "number_of_epochs",
    ]
    assert RunOptions.resembling(keys) == [
        ("precison", "precision"),
        ("checkpoint_interval_minutes", "ckpt_interval_minutes"),
        ("limit_train_batches", "limit_train_batches"),
        ("grad_accumulation", "grad_accumulation_factor"),
    ]
    assert RunOptions.resembling(SPEECHBRAIN) == []


def test_usual_keys_of_experiments_resemble_nothing() -> None:
    usual = (
        "seed lr batch_size number_of_epochs n_mels sample_rate model data_folder output_folder save_folder"
    )
    usual += " train_log epoch_counter num_workers sorting ckpt_interval test_batch_size dropout warmup_steps"
    assert RunOptions.resembling(usual.split()) in ([], [("ckpt_interval", "ckpt_interval_steps")])


# -- one type on every path --------------------------------------------------------------------------------------------

VALUES = [
    ("debug", "yes", True),
    ("debug", "off", False),
    ("debug", "True", True),
    ("debug", "1", True),
    ("debug", "0", False),
    ("max_grad_norm", "1", 1.0),
    ("max_grad_norm", ".5e-3", 0.0005),
    ("max_grad_norm", "1E-5", 1e-5),
    ("max_grad_norm", "null", None),
    ("optimizer_step_limit", "3", 3),
    ("optimizer_step_limit", "1e3", 1000),
    ("ckpt_interval_minutes", "0.5", 0.5),
    ("precision", "bf16", "bf16"),
    ("device", "cpu", "cpu"),
    ("compile_module_keys", "[a, b]", ["a", "b"]),
    ("compile_module_keys", "a", ["a"]),
    ("tqdm_barcolor", "{train: RED}", {"train": "RED", "valid": "MAGENTA", "test": "CYAN"}),
]


@pytest.mark.parametrize(("name", "word", "value"), VALUES)
def test_one_type_on_every_path(name: str, word: str, value: object) -> None:
    in_file = load_hyperpyyaml(f"{name}: {word}\n")
    in_section = load_hyperpyyaml(f"run_opts:\n  {name}: {word}\n")
    plain = word.replace("{", "").replace("}", "").replace(": ", "=")
    _, separate, _ = parse_arguments(["x.yaml", f"--{name}", plain])
    _, joined, _ = parse_arguments(["x.yaml", f"--{name}={plain}"])
    ways = [
        RunOptions.resolve({name: plain}),
        RunOptions.resolve(None, in_file),
        RunOptions.resolve(None, in_section),
        RunOptions.resolve(separate),
        RunOptions.resolve(joined),
    ]
    for way in ways:
        assert way[name] == value and type(way[name]) is type(value)
        assert name in way.explicit


def test_scalars_of_numpy_and_torch_are_numbers() -> None:
    options = RunOptions.resolve(
        {"debug": np.bool_(True), "debug_batches": np.int64(3), "max_grad_norm": torch.tensor(2.5)}
    )
    assert (options.debug, options.debug_batches, options.max_grad_norm) == (True, 3, 2.5)
    assert type(options.debug) is bool and type(options.debug_batches) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grad_accumulation_factor": 3.7}, "is 3.7, but it takes a whole number, at least 1."),
        ({"grad_accumulation_factor": 0}, "is 0, but it takes a whole number, at least 1."),
        ({"grad_accumulation_factor": True}, "is True, but it takes a whole number"),
        ({"debug_batches": "two"}, "is 'two', but it takes a whole number"),
        ({"debug": "maybe"}, "is 'maybe', but it takes true or false."),
        ({"debug": 2}, "is 2, but it takes true or false."),
        ({"debug": None}, "is None, but it takes true or false."),
        ({"max_grad_norm": float("nan")}, "is nan, but it takes a number, or null."),
        ({"max_grad_norm": "5,0"}, "is '5,0', but it takes a number, or null."),
        ({"max_grad_norm": 0}, "is 0, which would scale every gradient to zero. Use null"),
        ({"ckpt_interval_minutes": -1}, "is -1, but it takes a number, at least 0."),
        ({"precision": "bf15"}, "it takes one of 'fp32', 'fp16', 'bf16'. Did you mean 'bf16'?"),
        ({"precision": torch.float16}, "it takes one of 'fp32', 'fp16', 'bf16'."),
        ({"precision": ["fp32"]}, "it takes one of 'fp32', 'fp16', 'bf16'."),
        ({"compile_module_keys": [1]}, "is [1], but it takes a list of names, or null."),
        ({"tqdm_barcolor": "red"}, "is 'red', but it takes names with values."),
        (
            {"tqdm_barcolor": {"trian": "RED"}},
            "names the stage 'trian'; there are 'train', 'valid', 'test'. Did you mean",
        ),
        ({"compile_mode": 3}, "is 3, but it takes a text."),
    ],
)
def test_wrong_values_say_what_is_allowed(given: dict[str, object], message: str) -> None:
    assert message in message_of(given)
    assert repr(next(iter(given))) in message_of(given)


def test_the_message_says_where_the_value_was_given() -> None:
    assert "(in run_opts)" in message_of({"debug": "maybe"})
    assert "(a key of hparams)" in message_of(None, {"debug": "maybe"})
    assert "(under 'run_opts' in hparams)" in message_of(None, {"run_opts": {"debug": "maybe"}})
    with pytest.raises(ValueError, match="\\(on the command line\\)"):
        parse_arguments(["x.yaml", "--debug=maybe"])


# -- what options mean -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "replacement"),
    [
        ("jit", True, "write compile: true"),
        ("jit_module_keys", ["model"], "write compile_module_keys"),
        ("data_parallel_backend", True, "torchrun"),
        ("data_parallel_count", 2, "torchrun"),
        ("log_config", "log.yaml", "the logger 'brainlib'"),
    ],
)
def test_removed_options_raise_with_the_replacement(name: str, value: object, replacement: str) -> None:
    assert replacement in message_of({name: value})
    assert RunOptions.resolve({name: SPEECHBRAIN[name]})[name] == SPEECHBRAIN[name]


@pytest.mark.parametrize(("alias", "precision"), [("auto_mix_prec", "fp16"), ("bfloat16_mix_prec", "bf16")])
def test_deprecated_names_of_precision(alias: str, precision: str, caplog: pytest.LogCaptureFixture) -> None:
    assert RunOptions.resolve({alias: True}).precision == precision
    assert f"{alias} is deprecated: write precision: {precision}." in caplog.text
    assert "fp32 were asked for" in message_of({alias: True, "precision": "fp32"})
    assert RunOptions.resolve({alias: True, "precision": precision}).precision == precision
    assert RunOptions.resolve({alias: False}).precision == "fp32"


def test_a_negative_norm_switches_clipping_off_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert RunOptions.resolve({"max_grad_norm": -1}).max_grad_norm is None
    assert "max_grad_norm: -1 switches clipping off. Write null" in caplog.text


def test_naming_modules_switches_compile_on(caplog: pytest.LogCaptureFixture) -> None:
    assert RunOptions.resolve({"compile_module_keys": ["model"]}).compile
    assert not RunOptions.resolve({"compile_module_keys": None}).compile
    assert not caplog.records
    assert not RunOptions.resolve({"compile_module_keys": ["model"], "compile": False}).compile
    assert "compile_module_keys has no effect, because compile is false" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("skip_nonfinite_grads", False), ("distributed_launch", True)],
)
def test_an_option_without_effect_says_so_once(
    name: str, value: bool, caplog: pytest.LogCaptureFixture
) -> None:
    RunOptions.resolve()
    assert not caplog.records
    RunOptions.resolve({name: value})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert name in caplog.text and "has no effect" in caplog.text


def test_both_intervals_may_be_on() -> None:
    options = RunOptions.resolve({"ckpt_interval_minutes": 0.5, "ckpt_interval_steps": 10})
    assert (options.ckpt_interval_minutes, options.ckpt_interval_steps) == (0.5, 10)


# -- the device --------------------------------------------------------------------------------------------------------


def test_a_device_that_is_not_there_is_an_error_that_names_what_is() -> None:
    assert "'device' is 'cuda:99', but this machine has 'cpu'" in message_of({"device": "cuda:99"})
    assert "Name one of these, or none." in message_of({"device": "gpu"})
    assert "'cpu:3'" in message_of({"device": "cpu:3"})


def test_devices_of_a_machine_with_two_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert RunOptions().find_device() == torch.device("cuda", 0)
    assert RunOptions().find_device(local_rank=1) == torch.device("cuda", 1)
    assert RunOptions.resolve({"device": "cuda"}).find_device(local_rank=1) == torch.device("cuda", 1)
    assert RunOptions.resolve({"device": "cuda:1"}).find_device(local_rank=0) == torch.device("cuda", 1)
    assert RunOptions.resolve({"device": "CPU"}).find_device() == torch.device("cpu")
    assert "this machine has 'cpu', 'cuda:0', 'cuda:1'" in message_of({"device": "cuda:2"})
    assert "this machine has 'cpu', 'cuda:0', 'cuda:1'" in message_of({"device": "mps"})
    with pytest.raises(ValueError, match="This is process 2 of the machine, counted from 0"):
        RunOptions().find_device(local_rank=2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert RunOptions().find_device() == torch.device("cuda", 1)


def test_a_machine_with_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert (
        RunOptions().find_device()
        == RunOptions.resolve({"device": "mps:0"}).find_device()
        == torch.device("mps")
    )
    assert "this machine has 'cpu', 'mps'" in message_of({"device": "cuda"})


# -- cost --------------------------------------------------------------------------------------------------------------


def test_options_and_the_door_of_config_import_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import brainlib.options, brainlib.config\n"
        "brainlib.options.RunOptions.resolve({'device': 'cpu'})\n"
        "brainlib.config.parse_arguments(['a.yaml', '--lr', '1'])\n"
        "heavy = {'ruamel', 'ruamel.yaml', 'yaml', 'hyperpyyaml', 'torchaudio', 'tqdm', 'matplotlib', 'sklearn'}\n"
        "print(sorted(heavy & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The config that runs: values that are not allowed or have no effect are refused, and what is in force is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.bundle import ConfigParser

from bundle.configs import RunningConfig, check_values, config_record, find_mistakes
from bundle.configs.sources import ConfigSources
from bundle.errors import InputError, find_input_error
from tests.paths import CONFIGS


def parsed(*files: str, **values: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / f"{name}.yaml") for name in files])
    parser.update(values)
    return parser


def act(parser: ConfigParser, target: str, **options: Any) -> None:
    """Let the config run one act; MONAI wraps what it raises."""
    parser["one_act"] = [{"_target_": f"bundle.configs.{target}", **options}]
    try:
        parser.get_parsed_content("one_act")
    except RuntimeError as error:
        raise find_input_error(error) or error from None


def refusal(*files: str, **values: Any) -> str:
    with pytest.raises(InputError) as caught:
        act(parsed(*files, **values), "check_values")
    return str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        ["train"], ["train", "evaluate"], ["inference"],
        *(["train", f"overlays/{path.stem}"] for path in sorted((CONFIGS / "overlays").glob("*.yaml"))
          if path.stem not in ("demo_3d", "resnet101")),
        ["train", "overlays/demo", "overlays/demo_3d"], ["train", "overlays/paper_2d", "overlays/resnet101"],
        ["train", "overlays/demo", "evaluate"],
    ],
    ids="+".join,
)  # fmt: skip
def test_what_is_shipped_is_allowed(files: list[str]) -> None:
    act(parsed(*files), "check_values")


def test_a_misspelled_value_is_refused_with_a_hint() -> None:
    sentence = refusal("train", suprevision="full")
    assert sentence == 'suprevision: nothing in this config uses a value "suprevision"; did you mean "supervision"?'
    assert "docs/reference/configs.md" in refusal("train", zzz=1)
    sentence = refusal("train", **{"warmup::learning_rate": 3})
    assert sentence.startswith('warmup::learning_rate: nothing in this config uses a value "warmup::learning_rate"')


def test_a_value_whose_place_an_overlay_has_taken_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    act(parsed("train", augmentation=[]), "check_values")
    [warning] = [record.getMessage() for record in caplog.records if "nothing in this config uses" in record.msg]
    assert "rotation" in warning
    assert warning.endswith(": setting these values has no effect here")


def test_inference_takes_an_overlay_for_training_but_no_misspelling() -> None:
    act(parsed("inference", "overlays/demo"), "check_values", strict=False)
    with pytest.raises(InputError, match='did you mean "window_batch"'):
        act(parsed("inference", window_bach=2), "check_values", strict=False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("supervision", "fool", "supervision: expected a word, one of full, semi, partial, marginal, ignore, pann"),
        ("confidence", 1.5, "confidence: expected a number, from 0 to 1, found 1.5"),
        ("confidence", None, "found None"),
        ("marginal", "yes", "marginal: expected a switch, true or false, found 'yes'"),
        ("batch_full", 0, "batch_full: expected a whole number, from 1 to 4096, found 0"),
        ("train_iterations", 2.5, "a whole number"),
        ("seed", True, "a whole number"),
        ("pixdim", [1.5, 1.5], "pixdim: expected a list of 3 numbers, each from 0 to 100, found [1.5, 1.5]"),
        ("pixdim", "1.5", "a list of 3 numbers"),
        ("train_learning_rate", float("nan"), "a number, above 0, up to 10, found nan"),
        ("cache_limit", -1, "above 0, or null"),
        ("fold", "null", "or null, found 'null'; on a command line null is '$None'"),
        ("hu_window", [275, -125], "hu_window: expected the lower end first"),
        ("context", 2, "context: 2 is about slices, but patch_size is [64, 64, 64]"),
        ("device", "cuda:99", "device: expected a device of this machine that PyTorch can use, found cuda:99"),
        ("poly_power", "$1 / 0", "poly_power: cannot be worked out (division by zero); expected a number"),
        ("poly_power", "@nothing", 'poly_power: refers to "@nothing", which is not there'),
        ("network_def::chanels", [1], 'network_def::chanels: UNet has no argument "chanels"; did you mean "channels"?'),
        ("train::optimizer::_target_", "torch.optim.Adm", 'there is no "torch.optim.Adm"; did you mean'),
        ("cohorts", {"spleen": 1}, "cohorts: expected a list of names, or names separated by commas"),
        ("augmentation::0::kees", "image", 'augmentation::0::kees: RandRotated has no argument "kees"'),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, value: Any, expected: str) -> None:
    assert expected in refusal("train", **{name: value})


def test_all_mistakes_are_named_at_once() -> None:
    lines = refusal("train", seed="abc", confidence=2, suprevision="full").splitlines()
    assert lines[0] == "3 mistakes in the config:"
    assert [line.split(":")[0] for line in lines[1:]] == ["  suprevision", "  seed", "  confidence"]


def test_what_monai_label_overrides_stays_allowed() -> None:
    values = {"train::trainer::max_epochs": 5, "train::dataset::data": [], "validate::dataset::data": []}
    act(parsed("train", **values), "check_values")


def found_in(tmp_path: Path, overlay: str, **typed: Any) -> list[str]:
    """The mistakes of train.yaml with an overlay and what is typed."""
    (tmp_path / "overlay.yaml").write_text(overlay)
    files = [str(CONFIGS / "train.yaml"), str(tmp_path / "overlay.yaml")]
    parser = ConfigParser()
    parser.read_config(files)
    parser.update(typed)
    parser.parse()
    mistakes = find_mistakes(RunningConfig(parser.ref_resolver), ConfigSources(tuple(files), typed))
    return [mistake.removeprefix(f"{tmp_path}/") for mistake in mistakes]


def test_a_mistake_is_named_with_where_it_was_made(tmp_path: Path) -> None:
    overlay = "seed: x\nseed: y\nconfidence: 2\nrecipe: nonsense\nnetwork_deff: {_target_: torch.nn.ReLU}\n"
    found = found_in(tmp_path, overlay, confidence=3)
    assert found == [
        "overlay.yaml: seed (line 2): stands there twice, and only the last would count; remove one",
        "overlay.yaml: recipe: expected a component, a mapping with _target_ or a reference to one, found 'nonsense'",
        'overlay.yaml: network_deff: nothing in this config uses a value "network_deff"; did you mean "network_def"?',
        "overlay.yaml: seed: expected a whole number, from 0 to 4294967295, found 'y'",
        "--confidence: expected a number, from 0 to 1, found 3",
    ]


def test_a_mapping_without_a_target_does_not_replace_a_component(tmp_path: Path) -> None:
    [found] = found_in(tmp_path, "network_def: {channels: [4, 8]}\n")
    assert found == (
        "overlay.yaml: network_def: expected a component, a mapping with _target_ or a reference to one, found "
        "{'channels': [4, 8]}"
    )
    assert not found_in(tmp_path, "network_def: {_target_: torch.nn.Identity}\nrecipe: '$1'\n")


def test_null_does_not_replace_a_stage(tmp_path: Path) -> None:
    found = found_in(tmp_path, "validate: null\n")
    assert found[0].startswith("overlay.yaml: validate: expected a component, a mapping with _target_")


def test_a_stage_that_lost_its_parts_is_named_first(tmp_path: Path) -> None:
    found = found_in(
        tmp_path, "prior: {dataset: '@train::dataset'}\nwarmup: {optimizer: {_target_: torch.optim.SGD}}\n"
    )
    assert found[1].startswith("overlay.yaml: warmup: takes the place of the whole, without loss, lr_scheduler, ")
    assert found[1].endswith("; write warmup::PART to change one")


def test_only_the_cause_of_mistakes_is_named(tmp_path: Path) -> None:
    [found] = found_in(tmp_path, "output_dir: 5\n")  # cache_dir is worked out from it
    assert found == "overlay.yaml: output_dir: expected text, such as a path, found 5"
    cycle = found_in(tmp_path, "seed: '@fold'\nfold: '@seed'\n")
    assert [sentence.split(":")[1] for sentence in cycle] == [" fold", " seed"]


def test_a_value_of_an_earlier_version_is_told_its_new_name() -> None:
    assert refusal("train", save_interval=3).endswith('"save_interval"; did you mean "save_minutes"?')


def test_what_cannot_be_built_is_blamed_on_what_was_set_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text("network_def: null\n")
    files = (str(CONFIGS / "train.yaml"), str(overlay))
    monkeypatch.setattr(ConfigSources, "find", lambda: ConfigSources(files))
    with pytest.raises(InputError) as caught:
        act(parsed("train", network_def=None), "build_parts", ids=["network"])
    sentence = str(caught.value)
    assert "train.yaml: network: cannot be worked out ('NoneType' object has no attribute 'to')" in sentence
    assert sentence.endswith(f"; correct {overlay}: network_def")


def test_a_contradiction_is_named_with_the_value_that_was_set_last(tmp_path: Path) -> None:
    [found] = found_in(tmp_path, "context: 1\n")
    assert found.startswith("overlay.yaml: context: 1 is about slices")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("ab@$%#:1/. ", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["_target_", "a"]), inner, max_size=2),
    max_leaves=5,
)
IDS = ["seed", "organs", "patch_size", "device", "network_def", "network_def::channels", "recipe", "train::loss", "new"]


@given(name=st.sampled_from(IDS), value=ANY_JSON)
@settings(max_examples=100, deadline=None)
def test_any_value_for_any_id_is_allowed_or_our_error(name: str, value: Any) -> None:
    """Beside what MONAI itself cannot parse: macros of files that are not there, and relative ids."""
    parser = parsed("train", **{name: value})
    try:
        parser.parse()
    except Exception:
        return
    found = find_mistakes(
        RunningConfig(parser.ref_resolver), ConfigSources((str(CONFIGS / "train.yaml"),), {name: value})
    )
    assert all(isinstance(sentence, str) and "\n" not in sentence for sentence in found)


@pytest.mark.parametrize(
    ("typed", "warning"),
    [
        ({"dual_rate": 1e-3}, "--dual_rate: has no effect here, since duals is natural"),
        ({"supervision": "partial", "prior_weight": 1.0}, "--prior_weight: has no effect here, since the supervision"),
        ({"supervision": "partial", "confidence": 0.5}, None),
    ],
)
def test_values_that_others_switch_off_are_warned_of_when_they_are_typed(
    typed: dict[str, Any], warning: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = (str(CONFIGS / "train.yaml"), str(CONFIGS / "overlays" / "paper.yaml"))
    monkeypatch.setattr(ConfigSources, "find", lambda: ConfigSources(files, typed, run_ids=("one_act",)))
    act(parsed("train", "overlays/paper", **typed), "check_values")
    found = [record.getMessage() for record in caplog.records if "has no effect here, since" in record.msg]
    assert len(found) == (warning is not None)
    assert warning is None or found[0].startswith(warning)


def test_references_and_expressions_are_checked_by_what_they_stand_for() -> None:
    act(parsed("train", train_learning_rate="$2 * @warmup_learning_rate"), "check_values")
    assert "found 'cheese'" in refusal("train", seed="$'chee' + 'se'")


class Noted:
    """What a config that runs records of itself, where a test can see it."""

    record: dict[str, Any]

    def __init__(self) -> None:
        Noted.record = json.loads(json.dumps(config_record(), default=str))


def test_every_effective_value_is_recorded(tmp_path: Path) -> None:
    parser = parsed("train", "overlays/paper_2d", bundle_root=str(tmp_path), device="cpu", supervision="partial")
    parser["one_act"] = [{"_target_": f"{__name__}.Noted"}]
    parser.get_parsed_content("one_act")
    record, values = Noted.record, Noted.record["values"]
    assert (values["supervision"], values["device"], values["patch_size"]) == ("partial", "cpu", [512, 512, 1])
    assert values["output_dir"] == f"{tmp_path}/eval"
    assert (values["warmup_iterations"], values["poly_power"]) == (40_000, 0.9)
    assert record["config"]["network_def"]["backbone"] == "resnet50"
    assert record["versions"]["monai"]
    assert len(record["code"]) == 16


def test_without_a_config_nothing_happens() -> None:
    check_values()
    assert set(config_record()) == {"versions", "code"}

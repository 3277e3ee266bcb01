"""What a profile says, and the exact sentence for every way a file can be wrong."""

import os
import pickle
import tempfile
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import profiles
from profiles import Profile, ProfileError, load_profile, profile_names

SHIPPED = "'gateway', 'powerful', 'raspberry-pi-5', 'raspberry-pi-zero-2', 'weak'"
KEYS = (
    "'description', 'branch', 'batch_size', 'threads', 'runtime', 'memory_cap_mib', "
    "'storage_cap_mib', 'inference_quantisation', 'update_quantisation', 'packet_limit_kib', "
    "'bandwidth_kbps', 'interaction_rate', 'frozen_precision', 'duty_cycle', "
    "'temperature_limit_celsius', 'hysteresis_celsius', 'temperature_file', "
    "'battery_limit_percent', 'battery_folder', 'pause_file', 'quiet_hours', 'extends'"
)
COMPLETE = """\
description = "bench"
branch = "complex"
batch_size = 8
threads = 4
runtime = "tflite-runtime"
memory_cap_mib = 300
storage_cap_mib = 700
inference_quantisation = "dynamic"
update_quantisation = "int4"
packet_limit_kib = 64
bandwidth_kbps = 250
interaction_rate = 0.25
"""


NO_LIMITS = {  # what a file that says nothing about it means
    "duty_cycle": 1.0,
    "temperature_limit_celsius": 0.0,
    "hysteresis_celsius": 5.0,
    "temperature_file": "/sys/class/thermal/thermal_zone0/temp",
    "battery_limit_percent": 0,
    "battery_folder": "/sys/class/power_supply",
    "pause_file": "",
    "quiet_hours": "",
}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(name_or_path: str | Path) -> ProfileError:
    with pytest.raises(ProfileError) as caught:
        load_profile(name_or_path)
    return caught.value


# --- shipped profiles ---


def test_shipped_names_are_sorted() -> None:
    assert profile_names() == (
        "gateway",
        "powerful",
        "raspberry-pi-5",
        "raspberry-pi-zero-2",
        "weak",
    )


WEAK = {
    "branch": "lightweight",
    "batch_size": 32,
    "threads": 1,
    "runtime": "ai-edge-litert",
    "memory_cap_mib": 128,
    "storage_cap_mib": 64,
    "inference_quantisation": "int8",
    "update_quantisation": "int8",
    "packet_limit_kib": 128,
    "bandwidth_kbps": 1000,
    "interaction_rate": 1.0,
    "frozen_precision": "float32",
}
POWERFUL = {
    "branch": "complex",
    "batch_size": 32,
    "threads": 2,
    "runtime": "ai-edge-litert",
    "memory_cap_mib": 512,
    "storage_cap_mib": 1024,
    "inference_quantisation": "float32",
    "update_quantisation": "float32",
    "packet_limit_kib": 878,
    "bandwidth_kbps": 100_000,
    "interaction_rate": 1.0,
    "frozen_precision": "float32",
}
ZERO_2 = {
    "threads": 2,
    "runtime": "tflite-runtime",
    "memory_cap_mib": 192,
    "storage_cap_mib": 512,
    "inference_quantisation": "float16",
    "bandwidth_kbps": 20_000,
}
GATEWAY = {
    "memory_cap_mib": 384,
    "inference_quantisation": "dynamic",
    "update_quantisation": "float16",
    "bandwidth_kbps": 10_000,
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weak", WEAK),
        ("powerful", POWERFUL),
        ("raspberry-pi-zero-2", WEAK | ZERO_2),
        ("raspberry-pi-5", POWERFUL | {"threads": 3, "memory_cap_mib": 1024,
                                       "storage_cap_mib": 4096}),
        ("gateway", POWERFUL | GATEWAY),
    ],
)  # fmt: skip
def test_shipped_values(name: str, expected: dict[str, object]) -> None:
    values = asdict(load_profile(name))
    del values["description"]
    assert values == {"name": name, **expected, **NO_LIMITS}


def test_every_shipped_profile_describes_itself() -> None:
    """A board that inherited the description of its base would be shown as another device."""
    descriptions = {load_profile(name).description for name in profile_names()}
    assert len(descriptions) == len(profile_names())
    assert load_profile("weak").description == "Weak device: one core and little memory"


def test_every_field_has_a_one_line_doc_and_quantities_have_units() -> None:
    metadata = {f.name: f.metadata for f in fields(Profile)}
    assert [name for name, m in metadata.items() if not m["doc"] or "\n" in m["doc"]] == []
    assert metadata["batch_size"]["doc"] == "Samples in one training step"
    assert {name: m["unit"] for name, m in metadata.items() if m["unit"]} == {
        "memory_cap_mib": "MiB",
        "storage_cap_mib": "MiB",
        "packet_limit_kib": "KiB",
        "bandwidth_kbps": "kbps",
        "temperature_limit_celsius": "celsius",
        "hysteresis_celsius": "celsius",
        "battery_limit_percent": "percent",
    }


# --- good files ---


def test_a_complete_file_needs_no_base(tmp_path: Path) -> None:
    expected = Profile(
        name="bench.v2",
        description="bench",
        branch="complex",
        batch_size=8,
        threads=4,
        runtime="tflite-runtime",
        memory_cap_mib=300,
        storage_cap_mib=700,
        inference_quantisation="dynamic",
        update_quantisation="int4",
        packet_limit_kib=64,
        bandwidth_kbps=250,
        interaction_rate=0.25,
    )
    path = write(tmp_path, "bench.v2", COMPLETE)
    assert load_profile(path) == expected
    assert load_profile(str(path)) == expected


def test_a_toml_suffix_without_a_separator_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "bench", COMPLETE)
    monkeypatch.chdir(tmp_path)
    assert load_profile("bench.toml").memory_cap_mib == 300


def test_a_separator_without_a_suffix_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "weak").write_text(COMPLETE, encoding="utf-8")
    assert load_profile(f"{tmp_path}/weak").memory_cap_mib == 300


def test_the_nearest_file_wins_along_a_chain(tmp_path: Path) -> None:
    write(tmp_path, "base", 'extends = "gateway"\nthreads = 5\nbatch_size = 5\n')
    profile = load_profile(write(tmp_path, "board", 'extends = "base"\nbatch_size = 6\n'))
    gateway = load_profile("gateway")
    assert asdict(profile) == asdict(gateway) | {"name": "board", "threads": 5, "batch_size": 6}


def test_a_shipped_name_means_the_shipped_profile_even_beside_its_namesake(tmp_path: Path) -> None:
    own = write(tmp_path, "weak", 'extends = "weak"\nthreads = 9\n')
    assert load_profile(own).threads == 9
    assert load_profile(own).memory_cap_mib == 128
    assert load_profile(write(tmp_path, "board", 'extends = "weak"\n')).threads == 1


def test_a_long_chain_is_followed_to_its_end(tmp_path: Path) -> None:
    write(tmp_path, "p0", COMPLETE)
    for i in range(1, 40):
        write(tmp_path, f"p{i}", f'extends = "p{i - 1}"\n')
    assert load_profile(tmp_path / "p39.toml").memory_cap_mib == 300


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 1),
        ("batch_size", 4096),
        ("threads", 1),
        ("threads", 64),
        ("memory_cap_mib", 1),
        ("memory_cap_mib", 2**20),
        ("storage_cap_mib", 1),
        ("storage_cap_mib", 2**24),
        ("packet_limit_kib", 8),
        ("packet_limit_kib", 2**18),
        ("bandwidth_kbps", 1),
        ("bandwidth_kbps", 10**8),
        ("interaction_rate", 0.001),
        ("interaction_rate", 1.0),
        ("duty_cycle", 0.01),
        ("duty_cycle", 1.0),
        ("temperature_limit_celsius", 0.0),
        ("temperature_limit_celsius", 150.0),
        ("hysteresis_celsius", 0.0),
        ("hysteresis_celsius", 50.0),
        ("battery_limit_percent", 0),
        ("battery_limit_percent", 100),
    ],
)
def test_limits_are_inclusive(tmp_path: Path, key: str, value: float) -> None:
    path = write(tmp_path, "edge", f'extends = "weak"\n{key} = {value}\n')
    assert getattr(load_profile(path), key) == value


def test_an_integer_is_taken_where_a_float_is_meant(tmp_path: Path) -> None:
    base = COMPLETE.replace("interaction_rate = 0.25", "interaction_rate = 1")
    rate = load_profile(write(tmp_path, "bench", base)).interaction_rate
    assert (rate, type(rate)) == (1.0, float)


valid_values = st.fixed_dictionaries(
    {},
    optional={
        # What a basic TOML string may hold without escapes.
        "description": st.text(st.characters(codec="utf-8", exclude_categories=["C"])).map(
            lambda text: text.replace("\\", "").replace('"', "")
        ),
        "branch": st.sampled_from(["lightweight", "complex"]),
        "batch_size": st.integers(1, 4096),
        "threads": st.integers(1, 64),
        "runtime": st.sampled_from(["ai-edge-litert", "tflite-runtime"]),
        "memory_cap_mib": st.integers(1, 2**20),
        "storage_cap_mib": st.integers(1, 2**24),
        "inference_quantisation": st.sampled_from(["float32", "float16", "dynamic", "int8"]),
        "update_quantisation": st.sampled_from(["float32", "float16", "int8", "int4"]),
        "packet_limit_kib": st.integers(8, 2**18),
        "bandwidth_kbps": st.integers(1, 10**8),
        "interaction_rate": st.floats(0.001, 1.0),
        "frozen_precision": st.sampled_from(["float32", "int8"]),
        "duty_cycle": st.floats(0.01, 1.0),
        "temperature_limit_celsius": st.floats(0, 150),
        "hysteresis_celsius": st.floats(0, 50),
        "battery_limit_percent": st.integers(0, 100),
        "pause_file": st.sampled_from(["", "/", "/run/pause", "/a b/ü"]),
        "quiet_hours": st.lists(st.tuples(st.times(), st.times())).map(
            lambda pairs: ", ".join(
                f"{a:%H:%M}-{b:%H:%M}" for a, b in pairs if f"{a:%H:%M}" != f"{b:%H:%M}"
            )
        ),
    },
)


@given(valid_values)
def test_any_valid_keys_override_weak_exactly(values: dict[str, str | float]) -> None:
    lines = [f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "board", "\n".join(['extends = "weak"', *lines]))
        profile = load_profile(path)
    assert asdict(profile) == asdict(load_profile("weak")) | {"name": "board"} | values


def test_a_profile_is_frozen_and_hashable() -> None:
    profile = load_profile("weak")
    with pytest.raises(FrozenInstanceError):
        profile.threads = 2  # type: ignore[misc]
    assert profile.threads == 1
    assert not hasattr(profile, "__dict__")
    assert {profile: "a"}[load_profile("weak")] == "a"


# --- refused: one key at fault ---

BATCH = "an integer from 1 to 4096"
CAP = "an integer from 1 to 1048576 (MiB)"
STORAGE = "an integer from 1 to 16777216 (MiB)"
PACKET = "an integer from 8 to 262144 (KiB)"
BANDWIDTH = "an integer from 1 to 100000000 (kbps)"
RATE = "a number from 0.001 to 1.0"
HOURS = "must be as '22:00-06:00, 12:30-13:30' or empty"
UPDATES = "one of 'float32', 'float16', 'int8', 'int4'"
BRANCHES = "one of 'lightweight', 'complex'"
RUNTIMES = "one of 'ai-edge-litert', 'tflite-runtime'"
UNIT = "is unknown: the unit is MiB and the key is 'memory_cap_mib'"
STORAGE_UNIT = "is unknown: the unit is MiB and the key is 'storage_cap_mib'"
PACKET_UNIT = "is unknown: the unit is KiB and the key is 'packet_limit_kib'"
BANDWIDTH_UNIT = "is unknown: the unit is kbps and the key is 'bandwidth_kbps'"


@pytest.mark.parametrize(
    ("line", "key", "problem"),
    [
        # unknown keys
        ("batchsize = 4", "batchsize", "is unknown (did you mean 'batch_size'?)"),
        ("Threads = 4", "Threads", "is unknown (did you mean 'threads'?)"),
        ("extend = 'weak'", "extend", "is unknown (did you mean 'extends'?)"),
        ("inference_quantization = 'int8'", "inference_quantization",
         "is unknown (did you mean 'inference_quantisation'?)"),
        ("colour = 'red'", "colour", f"is unknown; the keys are {KEYS}"),
        ("name = 'other'", "name", f"is unknown; the keys are {KEYS}"),
        ("[table]\nthreads = 1", "table", f"is unknown; the keys are {KEYS}"),
        # wrong unit
        ("memory_cap_mb = 128", "memory_cap_mb", UNIT),
        ("memory_cap_kib = 128", "memory_cap_kib", UNIT),
        ("memory_cap_gib = 1", "memory_cap_gib", UNIT),
        ("memory_cap_bytes = 1", "memory_cap_bytes", UNIT),
        ("memory_cap_MiB = 1", "memory_cap_MiB", UNIT),
        ("memory_cap = 128", "memory_cap", UNIT),
        ("storage_cap_gb = 1", "storage_cap_gb", STORAGE_UNIT),
        ("storage_cap = 64", "storage_cap", STORAGE_UNIT),
        ("packet_limit_bytes = 131072", "packet_limit_bytes", PACKET_UNIT),
        ("packet_limit_kb = 128", "packet_limit_kb", PACKET_UNIT),
        ("bandwidth_mbps = 1", "bandwidth_mbps", BANDWIDTH_UNIT),
        ("bandwidth = 1000", "bandwidth", BANDWIDTH_UNIT),
        ("update_quantization = 'int8'", "update_quantization",
         "is unknown (did you mean 'update_quantisation'?)"),
        ("interaction_rates = 1.0", "interaction_rates",
         "is unknown (did you mean 'interaction_rate'?)"),
        # wrong type
        ("batch_size = true", "batch_size", f"must be {BATCH}, but it is a boolean"),
        ("batch_size = '32'", "batch_size", f"must be {BATCH}, but it is a string"),
        ("batch_size = 32.0", "batch_size", f"must be {BATCH}, but it is a float"),
        ("batch_size = [32]", "batch_size", f"must be {BATCH}, but it is an array"),
        ("batch_size.train = 32", "batch_size", f"must be {BATCH}, but it is a table"),
        ("batch_size = 2024-01-01", "batch_size", f"must be {BATCH}, but it is a date or time"),
        ("memory_cap_mib = '128 MiB'", "memory_cap_mib", f"must be {CAP}, but it is a string"),
        ("storage_cap_mib = 0.5", "storage_cap_mib", f"must be {STORAGE}, but it is a float"),
        ("packet_limit_kib = '128'", "packet_limit_kib", f"must be {PACKET}, but it is a string"),
        ("bandwidth_kbps = true", "bandwidth_kbps", f"must be {BANDWIDTH}, but it is a boolean"),
        ("interaction_rate = '1/4'", "interaction_rate", f"must be {RATE}, but it is a string"),
        ("interaction_rate = true", "interaction_rate", f"must be {RATE}, but it is a boolean"),
        ("update_quantisation = 8", "update_quantisation",
         f"must be {UPDATES}, but it is an integer"),
        ("description = 7", "description", "must be a string, but it is an integer"),
        ("branch = 1", "branch", f"must be {BRANCHES}, but it is an integer"),
        ("branch = ['complex']", "branch", f"must be {BRANCHES}, but it is an array"),
        # out of range
        ("batch_size = 0", "batch_size", f"must be {BATCH}, but it is 0"),
        ("batch_size = 4097", "batch_size", f"must be {BATCH}, but it is 4097"),
        ("threads = 0", "threads", "must be an integer from 1 to 64, but it is 0"),
        ("threads = 65", "threads", "must be an integer from 1 to 64, but it is 65"),
        ("memory_cap_mib = 0", "memory_cap_mib", f"must be {CAP}, but it is 0"),
        ("memory_cap_mib = -5", "memory_cap_mib", f"must be {CAP}, but it is -5"),
        ("memory_cap_mib = 1048577", "memory_cap_mib", f"must be {CAP}, but it is 1048577"),
        ("storage_cap_mib = 0", "storage_cap_mib", f"must be {STORAGE}, but it is 0"),
        ("storage_cap_mib = 16777217", "storage_cap_mib",
         f"must be {STORAGE}, but it is 16777217"),
        ("packet_limit_kib = 7", "packet_limit_kib", f"must be {PACKET}, but it is 7"),
        ("packet_limit_kib = 262145", "packet_limit_kib", f"must be {PACKET}, but it is 262145"),
        ("bandwidth_kbps = 0", "bandwidth_kbps", f"must be {BANDWIDTH}, but it is 0"),
        ("bandwidth_kbps = -1", "bandwidth_kbps", f"must be {BANDWIDTH}, but it is -1"),
        ("bandwidth_kbps = 100_000_001", "bandwidth_kbps",
         f"must be {BANDWIDTH}, but it is 100000001"),
        ("interaction_rate = 0", "interaction_rate", f"must be {RATE}, but it is 0"),
        ("interaction_rate = 0.0009", "interaction_rate", f"must be {RATE}, but it is 0.0009"),
        ("interaction_rate = -0.5", "interaction_rate", f"must be {RATE}, but it is -0.5"),
        ("interaction_rate = 1.01", "interaction_rate", f"must be {RATE}, but it is 1.01"),
        ("interaction_rate = 2", "interaction_rate", f"must be {RATE}, but it is 2"),
        ("interaction_rate = nan", "interaction_rate", f"must be {RATE}, but it is nan"),
        ("interaction_rate = inf", "interaction_rate", f"must be {RATE}, but it is inf"),
        ("duty_cycle = 0", "duty_cycle", "must be a number from 0.01 to 1.0, but it is 0"),
        ("battery_limit = 5", "battery_limit",
         "is unknown: the unit is percent and the key is 'battery_limit_percent'"),
        ("temperature_limit_kelvin = 350", "temperature_limit_kelvin",
         "is unknown: the unit is celsius and the key is 'temperature_limit_celsius'"),
        # not of the form
        ("pause_file = 'run/pause'", "pause_file",
         "must be a path from / or empty, but it is 'run/pause'"),
        ("pause_file = 1", "pause_file", "must be a path from / or empty, but it is an integer"),
        ("temperature_file = ''", "temperature_file", "must be a path from /, but it is ''"),
        ("quiet_hours = '22-6'", "quiet_hours", f"{HOURS}, but it is '22-6'"),
        ("quiet_hours = '22:00-24:00'", "quiet_hours", f"{HOURS}, but it is '22:00-24:00'"),
        ("quiet_hours = '22:00-06:00,'", "quiet_hours", f"{HOURS}, but it is '22:00-06:00,'"),
        ("quiet_hours = '08:00-08:00'", "quiet_hours",
         "has the interval 08:00-08:00, which would never end"),
        ("quiet_hours = '22:00-06:00, 12:30-12:30'", "quiet_hours",
         "has the interval 12:30-12:30, which would never end"),
        ("quiet_hours = ['22:00-06:00']", "quiet_hours", f"{HOURS}, but it is an array"),
        # not one of the choices
        ("branch = 'tiny'", "branch", f"must be {BRANCHES}, but it is 'tiny'"),
        ("branch = 'Complex'", "branch", f"must be {BRANCHES}, but it is 'Complex'"),
        ("runtime = 'litert'", "runtime", f"must be {RUNTIMES}, but it is 'litert'"),
        ("runtime = 2", "runtime", f"must be {RUNTIMES}, but it is an integer"),
        ("run_time = 'tflite-runtime'", "run_time", "is unknown (did you mean 'runtime'?)"),
        ("inference_quantisation = 'int4'", "inference_quantisation",
         "must be one of 'float32', 'float16', 'dynamic', 'int8', but it is 'int4'"),
        ("update_quantisation = 'dynamic'", "update_quantisation",
         f"must be {UPDATES}, but it is 'dynamic'"),
    ],
)  # fmt: skip
def test_a_bad_key_is_refused(tmp_path: Path, line: str, key: str, problem: str) -> None:
    path = write(tmp_path, "bad", f'extends = "weak"\n{line}\n')
    error = refusal(path)
    assert (error.file, error.key, error.problem) == (str(path), key, problem)
    assert str(error) == f"In profile {path}, key {key!r} {problem}."


def test_long_values_and_odd_keys_stay_one_line(tmp_path: Path) -> None:
    long = write(tmp_path, "long", f'branch = "{"x" * 1000}"\n')
    assert refusal(long).problem == (
        f"must be {BRANCHES}, but it is 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"
    )
    odd = write(tmp_path, "odd", '"a\\nb" = 1\n')
    assert str(refusal(odd)) == (f"In profile {odd}, key 'a\\nb' is unknown; the keys are {KEYS}.")


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("description", "a string"),
        ("branch", BRANCHES),
        ("batch_size", BATCH),
        ("threads", "an integer from 1 to 64"),
        ("runtime", RUNTIMES),
        ("memory_cap_mib", CAP),
        ("storage_cap_mib", STORAGE),
        ("inference_quantisation", "one of 'float32', 'float16', 'dynamic', 'int8'"),
        ("update_quantisation", UPDATES),
        ("packet_limit_kib", PACKET),
        ("bandwidth_kbps", BANDWIDTH),
        ("interaction_rate", RATE),
    ],
)
def test_a_missing_key_is_refused(tmp_path: Path, key: str, expected: str) -> None:
    kept = [line for line in COMPLETE.splitlines() if not line.startswith(key)]
    write(tmp_path, "base", "\n".join(kept))
    path = write(tmp_path, "board", 'extends = "base"\n')
    error = refusal(path)
    assert (error.file, error.key) == (str(path), key)
    assert str(error) == f"In profile {path}, key {key!r} is missing; it must be {expected}."


def test_a_fault_in_a_base_names_the_base_even_if_overridden(tmp_path: Path) -> None:
    base = write(tmp_path, "base", COMPLETE.replace("threads = 4", "threads = 400"))
    path = write(tmp_path, "board", 'extends = "base"\nthreads = 4\n')
    assert str(refusal(path)) == (
        f"In profile {base}, key 'threads' must be an integer from 1 to 64, but it is 400."
    )


# --- refused: extends ---


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("1", "must be a string, but it is an integer"),
        ("['weak']", "must be a string, but it is an array"),
        ("'wek'", f"names 'wek', which is neither a file in the same folder nor a shipped profile "
                  f"({SHIPPED}) (did you mean 'weak'?)"),
        ("'nearbyy'", f"names 'nearbyy', which is neither a file in the same folder nor a shipped "
                      f"profile ({SHIPPED}) (did you mean 'nearby'?)"),
        ("''", f"names '', which is neither a file in the same folder nor a shipped profile "
               f"({SHIPPED})"),
        ("'../out'", f"names '../out', which is neither a file in the same folder nor a shipped "
                     f"profile ({SHIPPED})"),
    ],
)  # fmt: skip
def test_a_bad_base_is_refused(tmp_path: Path, value: str, problem: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(tmp_path, "out", COMPLETE)
    write(folder, "nearby", COMPLETE)
    path = write(folder, "bad", f"extends = {value}\n")
    error = refusal(path)
    assert (error.file, error.key, error.problem) == (str(path), "extends", problem)
    assert str(error) == f"In profile {path}, key 'extends' {problem}."


def test_a_file_that_extends_itself_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a", COMPLETE + 'extends = "a"\n')
    assert str(refusal(path)) == (
        f"In profile {path}, key 'extends' closes a cycle: 'a' extends 'a'."
    )


def test_a_cycle_is_refused_in_the_file_that_closes_it(tmp_path: Path) -> None:
    path = write(tmp_path, "a", 'extends = "b"\n')
    write(tmp_path, "b", 'extends = "c"\n')
    closing = write(tmp_path, "c", 'extends = "b"\n')
    assert str(refusal(path)) == (
        f"In profile {closing}, key 'extends' closes a cycle: "
        "'a' extends 'b' extends 'c' extends 'b'."
    )


# --- refused: the file as a whole ---


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("wek", " (did you mean 'weak'?)"),
        ("Powerful", " (did you mean 'powerful'?)"),
        ("raspberry-pi", " (did you mean 'raspberry-pi-5'?)"),
        ("toaster", ""),
    ],
)
def test_an_unknown_shipped_name_is_refused(name: str, hint: str) -> None:
    error = refusal(name)
    assert (error.file, error.key) == (name, None)
    assert str(error) == f"Profile {name} is not shipped; the shipped ones are {SHIPPED}{hint}."


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"description = \"caf\xe9\"\n", "is not UTF-8 text (byte 0xe9 at offset 18)"),
        (b"threads = 1\nbatch_size = = 2\n",
         "is not valid TOML: Invalid value (at line 2, column 14)"),
        (b"threads = 1\nthreads = 2\n",
         "is not valid TOML: Cannot overwrite a value (at line 2, column 12)"),
        (b"threads 1\n",
         "is not valid TOML: Expected '=' after a key in a key/value pair (at line 1, column 9)"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    error = refusal(path)
    assert (error.file, error.key, error.problem) == (str(path), None, problem)
    assert str(error) == f"Profile {path} {problem}."


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_toml_that_exhausts_the_parser_is_refused(tmp_path: Path, value: str) -> None:
    path = write(tmp_path, "huge", f"threads = {value}\n")
    error = refusal(path)
    assert (error.file, error.key) == (str(path), None)
    assert error.problem.startswith("is not valid TOML: ")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert str(refusal(path)) == f"Profile {path} does not exist."


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert str(refusal(tmp_path)) == f"Profile {tmp_path} is a folder, not a file."


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.symlink_to(path)
    assert str(refusal(path)) == (
        f"Profile {path} cannot be read (Too many levels of symbolic links)."
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "secret", COMPLETE)
    path.chmod(0)
    assert str(refusal(path)) == f"Profile {path} cannot be read (Permission denied)."


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list everything")
def test_a_folder_that_cannot_be_listed_still_allows_shipped_bases(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    shipped = write(folder, "shipped", 'extends = "weak"\n')
    sibling = write(folder, "sibling", 'extends = "shipped"\n')
    folder.chmod(0o300)
    try:
        assert load_profile(shipped).memory_cap_mib == 128
        assert str(refusal(sibling)) == (
            f"In profile {sibling}, key 'extends' cannot be followed, "
            "as the folder cannot be listed (Permission denied)."
        )
    finally:
        folder.chmod(0o700)


def test_a_refusal_repeats_no_more_of_a_key_than_fits_in_a_line() -> None:
    error = ProfileError("a.toml", "1" * 5000, "is unknown")
    assert str(error) == f"In profile a.toml, key '{'1' * 80}' is unknown."


def test_errors_survive_pickling() -> None:
    error = ProfileError("a.toml", "threads", "is missing")
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error) == "In profile a.toml, key 'threads' is missing."


def test_what_the_package_exports() -> None:
    assert set(profiles.__all__) == {
        "Profile",
        "ProfileError",
        "StemshareError",
        "load_profile",
        "problem_with",
        "profile_names",
    }

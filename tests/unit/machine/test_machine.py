import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from perfkit import machine as environment
from perfkit.errors import InvalidValue
from perfkit.machine import checks, cores, devices, disturbances, fingerprint, folders, gpus


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's /proc, /sys and /dev, empty."""
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    return tmp_path


def files(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an answer in place of what torch finds on this machine."""

    def answer(cuda: int = 0, mps: bool = False, error: str = "") -> None:
        card = {"name": "H200", "uuid": "GPU-1", "pci": None, "bf16": True, "total_memory_bytes": 1}
        apple = [{"name": "Apple GPU", "bf16": False}] * mps
        found = {"cuda": [card] * cuda, "mps": apple, "error": error}
        monkeypatch.setattr(devices, "accelerators", lambda: found)

    return answer


# ---------------------------------------------------------------- folders


def test_data_lies_where_the_variable_says_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "mine"))
    assert environment.cache_folder() == tmp_path / "mine" / "cache"
    assert environment.runs_folder() == tmp_path / "mine" / "runs"
    assert list(tmp_path.iterdir()) == []


def test_data_lies_in_the_checkout_else_where_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFKIT_DATA")
    assert environment.data_folder() == Path(__file__).parents[3] / "data"
    monkeypatch.setattr(folders, "checkout", lambda: None)
    assert environment.data_folder() == Path("perfkit-data")


# ---------------------------------------------------------------- cores

V2 = {"proc/self/cgroup": "0::/slice/box\n"}
V1 = {"proc/self/cgroup": "5:cpuset:/\n3:cpu,cpuacct:/docker/abc\n0::/\n"}


@pytest.mark.parametrize(
    ("groups", "quota"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/slice/box/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/slice/box/cpu.max": "250000 100000\n"}, 2.5),
        (V2 | {"sys/fs/cgroup/slice/cpu.max": "150000 50000\n"}, 3.0),  # a limit further up counts
        (
            V2
            | {
                "sys/fs/cgroup/slice/cpu.max": "100000 100000",
                "sys/fs/cgroup/slice/box/cpu.max": "400000 100000",
            },
            1.0,
        ),
        (
            V2 | {"sys/fs/cgroup/cpu.max": "50000 100000\n"},
            0.5,
        ),  # the host's path, mounted at one's own group
        (V1, None),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n"}, None),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "200000\n"}, 2.0),
        (
            V1
            | {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "50000\n",
            },
            4.0,
        ),
    ],
)
def test_the_quota_is_the_tightest_of_the_groups_of_this_process(
    root: Path, groups: dict[str, str], quota: float | None
) -> None:
    files(root, groups)
    assert cores.quota() == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "usable", "words"),
    [
        (8, None, 8, "8 of 8 visible cores usable"),
        (8, 2.0, 2, "2 of 8 visible cores usable: cgroup quota 2.0"),
        (8, 2.9, 2, "2 of 8 visible cores usable: cgroup quota 2.9"),
        (8, 0.5, 1, "1 of 8 visible cores usable: cgroup quota 0.5"),
        (3, 16.0, 3, "3 of 8 visible cores usable: affinity mask 3"),
        (4, 3.0, 3, "3 of 8 visible cores usable: affinity mask 4, cgroup quota 3.0"),
    ],
)
def test_usable_cores_obey_mask_and_quota_and_say_so(
    monkeypatch: pytest.MonkeyPatch, affinity: int, quota: float | None, usable: int, words: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(affinity)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(cores, "quota", lambda: quota)
    assert environment.usable_cores() == usable
    assert environment.core_report() == words


def test_memory_is_what_the_control_group_grants(root: Path) -> None:
    whole = cores.memory_bytes()
    files(
        root,
        V2 | {"sys/fs/cgroup/slice/memory.max": "1048576\n", "sys/fs/cgroup/slice/box/memory.max": "max"},
    )
    assert cores.memory_bytes() == 1048576 < whole


# ---------------------------------------------------------------- fingerprint


def test_the_fingerprint_is_plain_data_that_a_caller_cannot_spoil() -> None:
    machine = environment.machine()
    assert json.loads(json.dumps(machine)) == machine
    assert {"id", "os", "python", "versions", "cpu", "memory_bytes", "shm_bytes", "gpus", "driver"} < set(
        machine
    )
    assert {"torch", "torchvision", "numpy"} <= set(machine["versions"])
    assert machine["cpu"]["cores_usable"] >= 1
    machine["cpu"].clear()
    assert environment.machine()["cpu"]


def test_the_id_depends_on_what_decides_speed_and_on_nothing_else() -> None:
    facts = environment.machine()
    assert fingerprint._comparable(facts) == facts["id"]
    same = facts | {"memory_bytes": facts["memory_bytes"] + 1_000_000, "os": "another"}
    other = facts | {"gpus": [{"name": "H200"}]}
    assert fingerprint._comparable(same) == facts["id"] != fingerprint._comparable(other)


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("model name\t: Xeon  8488C\nflags\t\t: fpu avx2 amx_bf16\n", "Xeon 8488C", ["avx2", "amx_bf16"]),
        ("processor\t: 0\nFeatures\t: fp bf16 sve\n", None, ["bf16", "sve"]),  # Arm names no model
    ],
)
def test_the_cpu_is_read_from_the_kernel(root: Path, text: str, model: str | None, flags: list[str]) -> None:
    files(root, {"proc/cpuinfo": text})
    cpu = fingerprint._cpu()
    assert cpu["flags"] == flags
    assert cpu["model"] == model if model else cpu["model"]


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\nhip: Optional[str] = None\n",
            {"cuda": "13.2"},
        ),
        ("cuda = None\nhip = '7.1'\n", {"hip": "7.1"}),
        ("cuda: Optional[str] = None\n", {}),
    ],
)
def test_the_build_of_torch_is_read_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, build: dict[str, str]
) -> None:
    files(tmp_path, {"torch/__init__.py": "raise RuntimeError", "torch/version.py": text})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert fingerprint.torch_build() == build


def test_torch_is_not_imported_and_the_import_is_light() -> None:
    script = (
        "import sys; from perfkit import machine as e; e.machine(); e.conditions(); e.doctor(); "
        "assert not {'torch', 'matplotlib', 'ipywidgets', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_outside_a_working_tree_there_is_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fingerprint, "checkout", lambda: None)
    assert fingerprint._commit() is None
    monkeypatch.setattr(fingerprint, "checkout", lambda: tmp_path)
    assert fingerprint._commit() is None


def test_a_machine_in_one_line() -> None:
    cpu = {"cores_usable": 1, "model": "Xeon"}
    card = {"name": "H200", "power_limit_w": 700.0}
    machine = {
        "cpu": cpu,
        "memory_bytes": 24 * 1024**3,
        "gpus": [card, {"name": "T4"}],
        "versions": {"torch": "2.15.0"},
    }
    assert environment.describe_machine(machine) == "1 core Xeon · 24 GiB · H200 (700 W), T4 · torch 2.15.0"
    assert environment.describe_machine({}) == "? cores unknown CPU · no GPU · torch –"


# ---------------------------------------------------------------- NVML


class FakeNvml:
    """pynvml with one GPU; what is missing from it raises, as on a device that lacks it."""

    def __init__(self, reasons: int = 0, pids: tuple[int, ...] = ()) -> None:
        self.reasons = reasons
        self.pids = pids

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return "card"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return "GPU-1"

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(busId=b"00000000:01:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return types.SimpleNamespace(total=1000, used=10)

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        return 700_000

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=5) for pid in self.pids]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(module: Any) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", module)
        fingerprint._machine.cache_clear()

    yield put
    fingerprint._machine.cache_clear()


def test_a_gpu_is_described_and_what_it_does_not_tell_is_none(card: Any) -> None:
    card(FakeNvml())
    assert environment.machine()["driver"] == "580.1"
    assert environment.machine()["gpus"] == [
        {
            "name": "NVIDIA H200",
            "uuid": "GPU-1",
            "pci": "00000000:01:00.0",
            "memory_bytes": 1000,
            "driver": "580.1",
            "power_limit_w": 700.0,
            "max_sm_clock_mhz": None,
        }
    ]


def test_conditions_of_a_gpu_are_in_words_and_leave_out_ones_own_processes(card: Any) -> None:
    card(FakeNvml(reasons=0x1 | 0x4 | 0x40, pids=(os.getpid(), 999_999)))
    (now,) = environment.conditions()["gpus"]
    assert now["throttle_reasons"] == ["power cap", "hardware thermal slowdown"]
    assert now["other_processes"] == [{"pid": 999_999, "memory_bytes": 5}]
    assert now["power_w"] is None


@pytest.mark.parametrize(
    "module", [None, types.SimpleNamespace(), types.SimpleNamespace(nvmlInit=lambda: 1 / 0)]
)
def test_without_nvml_there_are_no_gpus_and_no_noise(
    card: Any, module: Any, recwarn: pytest.WarningsRecorder
) -> None:
    card(module)  # None makes `import pynvml` fail
    assert environment.machine()["gpus"] == environment.conditions()["gpus"] == []
    with environment.nvml() as opened:
        assert opened is None
    assert not recwarn.list


def test_nvml_is_shut_down_also_after_an_error(card: Any) -> None:
    ended = []
    module = FakeNvml()
    module.nvmlShutdown = lambda: ended.append(True)  # type: ignore[method-assign]
    card(module)
    with pytest.raises(KeyError), environment.nvml():
        raise KeyError
    assert ended == [True]


# ---------------------------------------------------------------- conditions


def test_conditions_are_plain_data() -> None:
    now = environment.conditions()
    assert json.loads(json.dumps(now)) == now
    assert now["when"].endswith("+00:00")


def test_the_steal_share_is_that_since_it_was_last_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Times(tuple[float, float]):
        steal = property(lambda self: self[1])

    times = iter([Times((100.0, 0.0)), Times((109.0, 1.0)), Times((109.1, 1.0))])
    monkeypatch.setattr(disturbances, "_cpu_times", [])
    monkeypatch.setattr(disturbances.psutil, "cpu_times", lambda: next(times))
    assert disturbances._steal_share() is None  # nothing to compare with
    assert disturbances._steal_share() == pytest.approx(0.1)
    assert disturbances._steal_share() is None  # too soon


QUIET = {
    "load_average": [1.0, 1, 1],
    "cores_visible": 2,
    "cpu_steal_share": 0.0,
    "pids_known": True,
    "gpus": [],
}
BUSY = {"uuid": "GPU-1", "other_processes": [{"pid": 1}], "throttle_reasons": ["power cap"]}


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (QUIET, []),
        ({}, []),
        (QUIET | {"cpu_steal_share": None, "load_average": None}, []),
        (QUIET | {"cpu_steal_share": 0.25}, ["25%"]),
        (QUIET | {"load_average": [40.0, 1, 1]}, ["load average 40.0 on 2 cores"]),
        (QUIET | {"gpus": [BUSY]}, ["another process"]),
        (QUIET | {"gpus": [BUSY], "pids_known": False}, []),  # one's own children, as a container sees them
        (QUIET | {"gpus": [BUSY | {"other_processes": [{}] * 4}], "pids_known": False}, ["another process"]),
        (QUIET | {"gpus": [BUSY | {"uuid": "GPU-2"}]}, []),
        (
            QUIET | {"gpus": [{"throttle_reasons": ["hardware thermal slowdown"], "temperature_c": 91}]},
            ["hardware thermal slowdown at 91 °C"],
        ),
        (QUIET | {"gpus": [{"throttle_reasons": None, "other_processes": None}]}, []),
    ],
)
def test_doubts_name_what_disturbs_a_measurement(now: dict[str, Any], words: list[str]) -> None:
    used = None if "hardware" in str(words) else "GPU-1"
    found = environment.doubts(now, own_processes=3, gpu=used)
    assert len(found) == len(words)
    assert all(word in doubt and ":" in doubt for word, doubt in zip(words, found, strict=True))


# ---------------------------------------------------------------- devices


def test_without_a_device_node_torch_is_not_even_asked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(fingerprint, "machine", lambda: {"gpus": []})
    monkeypatch.setattr(fingerprint, "torch_build", lambda: {"cuda": "13.2"})
    assert not devices._may_have_accelerator()
    files(root, {"dev/kfd": ""})
    assert devices._may_have_accelerator()
    monkeypatch.setattr(fingerprint, "torch_build", dict)  # built for the CPU: nothing to ask
    assert not devices._may_have_accelerator()


@pytest.mark.parametrize(
    ("printed", "said", "code", "cuda", "error"),
    [
        ('noise\n{"cuda": [{"name": "x"}], "mps": []}\n', "", 0, 1, ""),
        (
            '{"cuda": [], "mps": []}\n',
            "UserWarning: the driver is too old\n",
            0,
            0,
            "UserWarning: the driver is too old",
        ),
        (
            "",
            "ModuleNotFoundError: No module named 'torch'\n",
            1,
            0,
            "ModuleNotFoundError: No module named 'torch'",
        ),
        ("", "", -11, 0, "torch's process ended with -11"),
    ],
)
def test_what_torch_says_is_taken_from_a_child(
    monkeypatch: pytest.MonkeyPatch, printed: str, said: str, code: int, cuda: int, error: str
) -> None:
    done = subprocess.CompletedProcess([], code, printed, said)
    monkeypatch.setattr(devices, "_may_have_accelerator", lambda: True)
    monkeypatch.setattr(devices.subprocess, "run", lambda *given, **more: done)
    found = devices.accelerators.__wrapped__()
    assert (len(found["cuda"]), found["error"]) == (cuda, error)


def test_a_hanging_child_means_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*given: Any, **more: Any) -> None:
        raise subprocess.TimeoutExpired("python", 180)

    monkeypatch.setattr(devices, "_may_have_accelerator", lambda: True)
    monkeypatch.setattr(devices.subprocess, "run", hang)
    found = devices.accelerators.__wrapped__()
    assert found["cuda"] == []
    assert "timed out" in found["error"]


def test_the_question_to_torch_is_answered_in_plain_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {"name": "H200", "uuid": "1-2", "major": 9, "total_memory": 8}
    place = {"pci_domain_id": 0, "pci_bus_id": 0x1A, "pci_device_id": 0}
    cards = [
        types.SimpleNamespace(**card, **place),
        types.SimpleNamespace(name="T4", major=7, total_memory=4),
    ]
    torch = types.SimpleNamespace(
        version=types.SimpleNamespace(hip=None),
        cuda=types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 2,
            get_device_properties=lambda index: cards[index],
        ),
        backends=types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda: False)),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    exec(devices._ASK_TORCH, {})
    first, second = json.loads(capsys.readouterr().out)["cuda"]
    assert (first["uuid"], first["pci"], first["bf16"]) == ("GPU-1-2", "00000000:1A:00.0", True)
    assert (second["uuid"], second["pci"], second["bf16"]) == (None, None, False)
    assert devices.DeviceFacts("cuda", **first).total_memory_bytes == 8


def test_cuda_is_better_than_mps_is_better_than_cpu(asked: Any) -> None:
    for given, device in [({"cuda": 1, "mps": True}, "cuda"), ({"mps": True}, "mps"), ({}, "cpu")]:
        asked(**given)
        assert environment.default_device() == environment.check_device(None) == device


def test_devices_that_are_there_keep_their_names(asked: Any) -> None:
    asked(cuda=2, mps=True)
    for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps"):
        assert environment.check_device(name) == name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "cuda:2",
            "'cuda:2' is not there: torch finds 2 GPUs, counted from 0. Available: cuda:0, cuda:1, cpu",
        ),
        ("mps", "device 'mps' is not there: torch finds none here"),
        ("gpu", "unknown device 'gpu'"),
        ("cuda:", "unknown device 'cuda:'. Did you mean 'cuda'? Allowed: cuda, mps, cpu (or cuda:1"),
        ("cpu:1", "unknown device"),
        ("", "unknown device ''"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_message(asked: Any, name: str, words: str) -> None:
    asked(cuda=2)
    with pytest.raises(InvalidValue) as caught:
        environment.check_device(name)
    assert words in str(caught.value)


def test_a_mask_that_hides_the_gpu_is_named(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InvalidValue, match="CUDA_VISIBLE_DEVICES is ''"):
        environment.check_device("cuda")


def test_facts_of_each_kind_of_device(asked: Any) -> None:
    asked(cuda=1, mps=True)
    assert environment.device_facts("cuda:0") == environment.DeviceFacts("cuda", "H200", "GPU-1", True, 1)
    assert environment.device_facts("mps") == environment.DeviceFacts("mps", "Apple GPU", None, False, None)
    cpu = environment.device_facts("cpu")
    assert (cpu.type, cpu.uuid, cpu.bf16) == ("cpu", None, True)


# ---------------------------------------------------------------- compiler


@pytest.mark.parametrize(
    ("device", "platform", "there", "variables", "problem"),
    [
        ("cpu", "linux", ["g++"], {}, ""),
        ("cpu", "linux", ["clang++"], {}, "export CXX=clang++"),
        ("cpu", "linux", ["clang++"], {"CXX": "clang++ -stdlib=libc++"}, ""),
        ("cpu", "linux", ["g++"], {"CXX": "icpx"}, "CXX names 'icpx', which is not there"),
        ("cpu", "linux", [], {}, "apt install g++"),
        ("cpu", "darwin", [], {}, "xcode-select"),
        ("mps", "darwin", ["clang++"], {}, ""),
        ("cuda", "linux", ["clang"], {}, ""),
        ("cuda:1", "linux", ["g++"], {}, "no C compiler"),
    ],
)
def test_the_compiler_is_the_one_that_torch_would_take(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    device: str,
    platform: str,
    there: list[str],
    variables: dict[str, str],
    problem: str,
) -> None:
    files(tmp_path, {"Python.h": ""})
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(devices.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(devices.sysconfig, "get_path", lambda *given: str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.has_compiler(device) == (problem == "")
    assert problem in environment.compiler_problem(device)


def test_headers_and_triton_belong_to_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices.shutil, "which", lambda name: name)
    monkeypatch.setattr(devices.sysconfig, "get_path", lambda *given: str(tmp_path))
    assert "python3-dev" in environment.compiler_problem("cpu")
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)
    assert "Triton is missing" in environment.compiler_problem("cuda")


# ---------------------------------------------------------------- doctor


def check(name: str) -> checks.Check:
    return next(found for found in environment.doctor() if found.name == name)


def test_every_check_says_something_and_every_fault_has_a_remedy() -> None:
    found = environment.doctor()
    names = "Python|torch|Jupyter|cores|memory|/dev/shm|GPU|bf16 on the CPU|compiler|data folder"
    assert [one.name for one in found][:10] == names.split("|")
    assert all(one.detail and (one.remedy or one.status == "ok") for one in found)
    assert check("torch").status == "ok"


@pytest.mark.parametrize(
    ("torch", "vision", "words"),
    [
        (None, "0.29.2", "torch missing"),
        ("2.15.0", None, "torchvision missing"),
        ("2.10.1", "0.29.2", "perfkit needs torch 2.11"),
        ("2.13.0", "0.29.2", "torchvision needs torch"),
    ],
)
def test_a_pair_of_torch_and_torchvision_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, torch: str | None, vision: str | None, words: str
) -> None:
    monkeypatch.setattr(checks, "version", {"torch": torch, "torchvision": vision}.get)
    monkeypatch.setattr(checks.metadata, "requires", lambda name: ["numpy", "torch>=2.14.0"])
    found = checks._torch()
    assert found.status == "problem"
    assert words in found.detail
    assert "requirements.txt" in found.remedy


@pytest.mark.parametrize(
    ("changed", "name", "status", "words"),
    [
        ({"shm_bytes": 64 * 1024**2}, "/dev/shm", "warning", "--shm-size"),
        ({"shm_bytes": None}, "/dev/shm", "ok", "n/a"),
        ({"memory_bytes": 1024**3}, "memory", "warning", "close other programs"),
        ({"cpu": {"flags": [], "model": "old"}}, "bf16 on the CPU", "ok", "slower"),
        ({"gpus": [{"name": "T4"}], "driver": "470"}, "GPU", "warning", "torch cannot use T4, driver 470"),
    ],
)
def test_what_a_machine_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, asked: Any, changed: dict[str, Any], name: str, status: str, words: str
) -> None:
    asked()
    machine = environment.machine() | changed
    monkeypatch.setattr(fingerprint, "machine", lambda: machine)
    found = check(name)
    assert found.status == status
    assert words in f"{found.detail} {found.remedy}"


def test_the_gpu_check_tells_its_cases_apart(root: Path, asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    none: dict[str, Any] = {"gpus": [], "driver": None}
    some: dict[str, Any] = {"gpus": [{"name": "T4"}], "driver": "470"}
    asked()
    assert checks._gpu(none).status == "ok"
    assert "n/a" in checks._gpu(none).detail
    files(root, {"dev/nvidiactl": ""})
    assert "--gpus all" in checks._gpu(none).remedy
    monkeypatch.setattr(fingerprint, "torch_build", dict)
    assert "built for the CPU" in checks._gpu(some).remedy
    monkeypatch.setattr(fingerprint, "torch_build", lambda: {"cuda": "13.2"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    asked(error="the driver is too old")
    assert "torch says: the driver is too old" in checks._gpu(some).remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "unset it" in checks._gpu(some).remedy
    asked(cuda=1)
    assert checks._gpu(some) == checks.Check("GPU", "ok", "H200, driver 470")


def test_a_data_folder_that_cannot_be_written_or_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "not" / "yet"))
    assert checks._data().status == "ok"
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=10))
    assert checks._data().status == "warning"
    files(tmp_path, {"file": ""})
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "file" / "data"))
    assert checks._data().status == "problem"
    assert "PERFKIT_DATA" in checks._data().remedy


def test_missing_packages_one_core_and_the_deprecated_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version", lambda name: "11.5" if name == "pynvml" else None)
    assert checks._jupyter().status == "warning"
    (deprecated,) = checks._deprecated()
    assert "pip uninstall pynvml" in deprecated.remedy
    monkeypatch.setattr(cores, "usable_cores", lambda: 1)
    assert checks._cores().status == "warning"
    monkeypatch.setattr(devices, "compiler_problem", lambda device: "no C++ compiler (g++): apt install g++")
    assert checks._compiler() == checks.Check(
        "compiler", "warning", "torch.compile on cpu: no C++ compiler (g++)", "apt install g++"
    )


def test_process_ids_are_known_outside_containers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(gpus.os, "readlink", lambda path: "pid:[4026531836]")
    assert gpus.pids_known()
    monkeypatch.setattr(gpus.os, "readlink", lambda path: "pid:[4026532999]")
    assert not gpus.pids_known()

"""What every test runs in: data of its own, the smallest preset, no process left, no silent skip in CI."""

import atexit
import contextlib
import gc
import getpass
import os
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path

import hypothesis
import psutil
import pytest

TESTS = Path(__file__).parent
CI = os.environ.get("CI", "").lower() in {"1", "true"}
# In CI a skip passes only when its reason has one of these words: a machine without a GPU, or a checkout
# without the folder of traces, or another version of torch, beside it.
CI_MAY_LACK = ("gpu", "cuda", "traces", "another torch")
# Marks, by inheritance, every process that this test run starts.
MARK = "PERFKIT_TEST_ID"
# A file system in memory, and how much must be free there and in memory to hold the temporary files of a run.
IN_MEMORY = Path("/dev/shm")
ROOM, MEMORY = 4 << 30, 8 << 30
# The files that take longest, the longest first: a process that has done its own takes the next file.
LONGEST = (
    "notebooks/test_run.py",
    "notebooks/test_run_others.py",
    "integration/test_causes.py",
    "browser/test_panels.py",
    "integration/test_watch.py",
    "integration/test_watched_ranks.py",
    "integration/test_colab.py",
    "integration/test_cli_compare.py",
    "integration/test_scripts.py",
    "unit/additions/referee/test_behaviour.py",
    "integration/test_cli.py",
    "integration/test_faults.py",
    "integration/test_compared_ranks.py",
    "integration/test_processes.py",
    "integration/test_files.py",
    "integration/test_puzzles.py",
    "integration/test_wheel.py",
    "browser/test_book.py",
    "integration/test_scale.py",
    "contract/test_architecture.py",
    "contract/test_climb.py",
    "browser/test_notebook7.py",
)


# Reading notebooks imports a parser of URLs that no notebook is checked with; making it takes a core 2 s.
sys.modules.setdefault("rfc3987_syntax", None)

hypothesis.settings.register_profile("perfkit", deadline=None, derandomize=CI)
hypothesis.settings.load_profile("perfkit")


def _end(number, _):
    """Ends a test run as Ctrl-C does, with what it has started; a second signal does not disturb that."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _keep_temporary_files_in_memory():
    """Has every process of this run put them there; a folder of a test (`tmp_path`) stays on the disk.

    The mirror of a watched script is some thousand links, made and removed for each script. An ext4 without a
    journal takes up to 1 ms for each, because for minutes it does not use the place of a removed one again.
    Returns whether it has done so.
    """
    has_room = IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free > ROOM
    if not has_room or psutil.virtual_memory().available < MEMORY:
        return False
    # A watched script may write anywhere below /dev, so a user's folder there would not be kept from it.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="perfkit-", dir=IN_MEMORY)
    # Last of all: `multiprocessing`, which is imported later, removes its own folder first.
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)
    return True


def pytest_configure(config):
    """Point perfkit at a folder of this session before any test module, or perfkit itself, is imported."""
    os.environ[MARK] = uuid.uuid4().hex
    # Started in the background of a script, this process ignores Ctrl-C, and would hand that down.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end)
    is_main = not hasattr(config, "workerinput")
    is_in_memory = is_main and _keep_temporary_files_in_memory()
    os.environ["PERFKIT_DATA"] = tempfile.mkdtemp(prefix="perfkit-tests-")
    os.environ["PERFKIT_LOCKS"] = os.path.join(os.environ["PERFKIT_DATA"], "locks")
    os.environ["PERFKIT_PRESET"] = "smoke"
    # One for all processes of a session, as compiling the same model again takes a minute each time.
    if is_main:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="perfkit-inductor-")
    if is_in_memory:
        # Where torch keeps its compiled headers: as measured processes and watched scripts have it.
        os.symlink(
            os.environ["TORCHINDUCTOR_CACHE_DIR"],
            Path(tempfile.tempdir, f"torchinductor_{getpass.getuser()}"),
        )
    # Else every process that compiles starts another one for it, which imports torch first.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # Test processes and what they start share two cores: threads would wait for each other all the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_unconfigure(config):
    shutil.rmtree(os.environ["PERFKIT_DATA"], ignore_errors=True)
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Looks for no garbage while torch is imported, and never again in what that has made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _turn(item):
    """When the file of a test comes."""
    name = Path(os.path.relpath(item.path, TESTS)).as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=_turn)
    for item in items:
        if "no_orphans" in item.fixturenames:
            item.add_marker("integration")
    on_gpu = [item for item in items if TESTS / "gpu" in item.path.parents or item.get_closest_marker("gpu")]
    if on_gpu:
        import torch

        skip = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
        for item in on_gpu:
            item.add_marker("gpu")
            item.add_marker(skip)


def _refuse_skip(report):
    """In CI, turn a skip for want of something that CI must have into a failure."""
    if CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(word in reason.lower() for word in CI_MAY_LACK):
            report.outcome = "failed"
            report.longrepr = f"skipped in CI, where nothing but a GPU may be missing: {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport():
    return _refuse_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report():
    return _refuse_skip((yield))


_MEASURING = ("perfkit.worker", "pt_data_worker")


def _is_left_over(process):
    """Whether this is a worker of this test run, or a Python process of it that has lost its parent."""
    if process.environ().get(MARK) != os.environ[MARK]:
        return False
    command = process.cmdline()
    # A forked one has its server's command line, a name of its own, and loader workers that torch names.
    if process.name() in _MEASURING:
        return True
    is_python = bool(command) and "python" in Path(command[0]).name
    return is_python and os.getpid() not in {parent.pid for parent in process.parents()}


def assert_no_orphans(grace_s=60.0):
    """Fail if a measuring process outlives its test by more than the grace; end it, to spare the others."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile, or another user's
            is_other = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if is_other and _is_left_over(process):
                found.append(process)
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    said = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            said.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
            process.kill()
    assert not said, "left running:\n" + "\n".join(said)


@pytest.fixture
def no_orphans():
    """Checks at the test's end that none of its processes is left; call it to check earlier."""
    yield assert_no_orphans
    assert_no_orphans()


@pytest.fixture(scope="session", autouse=True)
def _no_orphans_at_the_end():
    yield
    assert_no_orphans()


@pytest.fixture(scope="session", autouse=True)
def _zygotes_are_forked():
    """From one process for all of them, as importing torch takes a core 3 s; `test_processes.py` has real ones."""
    from perfkit.process import zygote
    from tests.support import zygotes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote, "subprocess", zygotes.forking())
        yield


@pytest.fixture(scope="module")
def zygotes_stay():
    """Ends the zygotes of a file's tests with the last of them: each has imported torch, which takes a core 3 s."""
    from perfkit.process import zygote
    from perfkit.process.child import environment_of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zygote, "end_unneeded", lambda environment: None)
        yield
    zygote.end_unneeded(environment_of({}))


@pytest.fixture
def data_dir(monkeypatch):
    """An empty data folder for one test, where the session's shared one would not do.

    It is with the temporary files: on a disk, each result that is stored waits until it is written.
    """
    with tempfile.TemporaryDirectory(prefix="perfkit-data-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("PERFKIT_DATA", folder)
        yield Path(folder)


@pytest.fixture
def settings_kept():
    """Puts back what a recipe sets in its process, where nothing counts as compiled yet."""
    import torch._dynamo.utils

    from perfkit.worker.checks import FP32_PARTS

    torch._dynamo.utils.counters.clear()
    before = [part.fp32_precision for part in FP32_PARTS]
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision("highest")
    for part, precision in zip(FP32_PARTS, before, strict=True):
        part.fp32_precision = precision
    torch.backends.cudnn.benchmark = benchmark
    torch.set_num_threads(threads)


@pytest.fixture
def shell():
    """IPython in this process, for one test: while it is there, `get_ipython()` finds it."""
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


@pytest.fixture
def golden(request):
    """Compares a text with `golden/NAME.txt` beside the test; with `PERFKIT_GOLDEN=1` it is written anew."""

    def compare(name, text):
        file = request.path.parent / "golden" / f"{name}.txt"
        if os.environ.get("PERFKIT_GOLDEN"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8")

    return compare

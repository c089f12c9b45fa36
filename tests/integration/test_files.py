"""The files of a user are as they were, whatever a measured script did, and however it did so."""

import subprocess
from pathlib import Path

import pytest

from perfkit.additions.guard import landlock
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import RunFailed
from tests.support import scripts

pytestmark = pytest.mark.usefixtures("no_orphans")

START = """
import multiprocessing, os, shutil, sqlite3, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

def child():
    open("file.txt", "w").write("new")

def shell(command):
    subprocess.run(command, shell=True, check=True)

def python(code):
    subprocess.run([sys.executable, "-c", code], check=True)

if __name__ == "__main__":
"""
COPIED = {
    "open": 'open("file.txt", "w").write("new")',
    "append": 'open("file.txt", "a").write("new")',
    "os.replace": 'open("fresh", "w").write("new"); os.replace("fresh", "file.txt")',
    "rmtree": 'shutil.rmtree("folder")',
    "sqlite3": 'sqlite3.connect("new.db").execute("create table t (x)")',
    "chdir": 'os.chdir("folder"); open("inner.txt", "w").write("new")',
    "dir_fd": """
    folder = os.open("folder", os.O_RDONLY)
    number = os.open("inner.txt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
    os.write(number, b"new")
    os.remove("other.txt", dir_fd=folder)""",
    "threads": """
    def write(number): open(f"pool/{number}.txt", "w").write("new")
    with ThreadPoolExecutor(8) as pool: list(pool.map(write, range(200)))""",
    "another Python": """python('open("file.txt", "w").write("new")')""",
    "spawned": """
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start(); process.join(); assert process.exitcode == 0""",
    "symlink": 'os.symlink("/etc/hostname", "link"); assert Path("link").is_symlink()',
    "a large folder": 'os.chmod("many", 0o700); os.utime("many", (1, 1)); assert len(os.listdir("many")) == 1000',
    "a descriptor": """
    with open("fresh", "w") as file: os.fchmod(file.fileno(), 0o640)
    for change in (lambda number: os.fchmod(number, 0o600), lambda number: os.utime(number, (1, 1))):
        try: change(os.open("large.bin", os.O_RDONLY))
        except PermissionError: continue
        raise AssertionError("it was not refused")""",
    "the folder above": 'open("../beside.txt", "a").write("new"); os.chmod("../beside.txt", 0o600)',
    "the folder around a link": """
    try: os.chmod("many/../src/model.py", 0o600)
    except PermissionError: os.chmod("src/model.py", 0o600)""",
}
"""Ways to write that work on a copy, with and without Landlock."""
PROGRAMS = {
    "rm": 'shell("rm -rf folder/*"); assert not os.listdir("folder")',
    "find": 'subprocess.run(["find", "folder/", "-type", "f", "-delete"], check=True)',
    "redirect": 'shell("echo new > file.txt"); assert open("file.txt").read() == "new\\n"',
    "mv": 'shell("mv ../beside.txt here.txt")',
    "system": 'assert os.system("echo new >> folder/inner.txt") == 0',
}
"""Programs; without Landlock they are refused."""
REFUSED = {
    "git": ('shell("git add -A && git -c user.name=a -c user.email=b commit -qm mine")', "index.lock"),
    "absolute": ('shell("echo new > $THEIRS/file.txt")', "file.txt: Permission denied"),
    "a large file": ('shell("echo new > large.bin")', "large.bin: Permission denied"),
    "truncate": ("""python('import os; os.truncate("large.bin", 1)')""", "Permission denied: 'large.bin'"),
    "a large folder": ('shell("rm many/*")', "Permission denied"),
    "hard link": ('shell("ln $THEIRS/large.bin mine && echo new > mine")', "Invalid cross-device link"),
    "moved": ('shell("mv $THEIRS/file.txt here.txt")', "Permission denied"),
}
"""What the kernel refuses."""


@pytest.fixture(scope="module")
def folder_of_a_user(tmp_path_factory):
    """In a repository, with files that are worth keeping; every test finds it as the others did."""
    folder = tmp_path_factory.mktemp("user") / "project"
    for name in ("file.txt", "folder/inner.txt", "folder/other.txt", "src/model.py", "../beside.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    for where, count in (("pool", 200), ("many", 1000)):
        (folder / where).mkdir()
        for number in range(count):
            (folder / where / f"{number}.txt").write_text("precious")
    with (folder / "large.bin").open("wb") as file:
        file.truncate(9 << 20)
    for words in ("init -q", "add src file.txt", "-c user.name=a -c user.email=b commit -qm first"):
        subprocess.run(["git", *words.split()], cwd=folder, check=True)
    return folder


@pytest.fixture
def project(folder_of_a_user, monkeypatch):
    monkeypatch.chdir(folder_of_a_user)
    monkeypatch.setenv("THEIRS", str(folder_of_a_user))
    return folder_of_a_user


def state(folder):
    """Everything in the folder above, Git's own folder too."""
    files = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    return files, {path: (path.stat().st_mode, path.stat().st_mtime) for path in folder.rglob("*")}


def written(code, folder):
    """What a script says that does not train: its standard error, and the failure that it ends in."""
    Path("train.py").write_text(START + f"    {code.strip()}\n")
    before = state(folder)
    with WatchedScript(Launch("train.py")).start() as script:
        script.timeout_s = 60
        with pytest.raises(RunFailed) as failure:
            script.ask("describe")
        errors = "\n".join(script.written("err"))
    assert state(folder) == before
    return errors, failure.value


@pytest.fixture(params=[True, False], ids=["landlock", "no landlock"])
def is_guarded(request, monkeypatch):
    """Whether the kernel guards the files."""
    if request.param and not landlock.is_there():
        pytest.skip("this kernel has no Landlock")
    if not request.param:
        monkeypatch.setattr(landlock, "is_there", lambda: False)
    return request.param


@pytest.mark.parametrize("way", COPIED)
def test_a_write_that_python_announces_goes_to_a_copy(way, project, is_guarded):
    errors, failure = written(COPIED[way], project)
    assert "exit status 0" in failure.what and not errors


LIBRARIES = """
import numpy, torch, torchvision
from tokenizers import Tokenizer, models
tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
scripted = torch.jit.script(torch.nn.Linear(2, 2))
exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
with torch.profiler.profile() as profile:
    torch.ones(3).sum()
for write in (
    lambda name: torch.save({}, name),
    lambda name: numpy.save(name, numpy.zeros(3)),
    lambda name: numpy.memmap(name, numpy.uint8),
    scripted.save,
    lambda name: torch.export.save(exported, name),
    lambda name: torchvision.io.write_png(torch.zeros(3, 4, 4, dtype=torch.uint8), name),
    profile.export_chrome_trace,
    tokenizer.save,
):
    write("array.npy")
print("written", flush=True)
scripted.save("large.bin")
"""


def test_libraries_in_c_and_rust_write_to_copies_and_not_to_large_files(project, monkeypatch):
    if not landlock.is_there():
        pytest.skip("this kernel has no Landlock")
    scripts.fork(monkeypatch)
    (project / "array.npy").write_text("precious")
    Path("train.py").write_text(LIBRARIES)
    before = state(project)
    with WatchedScript(Launch("train.py")).start() as script:
        with pytest.raises(RunFailed, match="Permission denied") as failure:
            script.ask("describe")
        assert script.written("out") == ["written"]
    assert "move that file away" in failure.value.remedy
    assert state(project) == before


@pytest.mark.parametrize("way", PROGRAMS)
def test_other_programs_change_copies_too_or_are_not_started(way, project, is_guarded):
    errors, failure = written(PROGRAMS[way], project)
    if is_guarded:
        assert "exit status 0" in failure.what and not errors
    else:
        assert "starts no other program" in errors


@pytest.mark.parametrize("way", REFUSED)
def test_the_kernel_refuses_what_would_change_a_file_of_the_user(way, project, is_guarded):
    code, said = REFUSED[way]
    errors, failure = written(code, project)
    if is_guarded:
        assert "exit status 1" in failure.what and said in errors
        assert "move that file away" in failure.remedy

"""A script's writes stay in the mirror of its folder; reading leads where it would."""

import contextlib
import errno
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from perfkit.additions.guard import landlock, outputs
from perfkit.additions.guard.outputs import Outputs, Write, fill, unfold, writes
from perfkit.errors import PerfkitError, in_words


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder as a user's."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    folder = tmp_path / "home" / "project"
    (folder / "out" / "deep").mkdir(parents=True)
    for name in ("train.py", "out/old.txt", "out/deep/kept.txt", "../beside.txt"):
        (folder / name).write_text("original")
    return folder


@pytest.fixture
def mirror(project):
    """Where a mirror can be: in memory if the tests' temporary files are, as it has a thousand links."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        yield f"{folder}/files"


@pytest.fixture
def scratch(project, mirror, monkeypatch):
    """The current folder is its mirror."""
    unfold(mirror, f"{mirror}{project}")
    monkeypatch.chdir(f"{mirror}{project}")
    return Outputs(mirror)


def test_a_file_whose_mode_is_changed_keeps_its_contents(project, scratch):
    scratch.hook("os.chmod", ("out/old.txt", 0o600, -1))
    os.chmod("out/old.txt", 0o600)
    assert Path("out/old.txt").read_text() == "original"
    assert (project / "out/old.txt").stat().st_mode & 0o777 != 0o600


def test_a_hard_link_is_to_a_copy_where_links_are_followed(project, scratch):
    """Some systems follow the mirror's link: whoever writes to the new name would change the user's own file."""
    scratch.hook("os.link", ("out/old.txt", "new.txt", -1, -1))
    os.link(os.path.realpath("out/old.txt"), "new.txt")
    Path("new.txt").write_text("changed")
    assert (project / "out/old.txt").read_text() == "original"


@pytest.mark.parametrize(
    ("event", "args", "change"),
    [
        ("os.chmod", (0o700, -1), lambda: os.chmod("out", 0o700)),
        ("os.chown", (os.getuid(), os.getgid(), -1), lambda: os.chown("out", os.getuid(), os.getgid())),
        ("os.utime", ((1, 1), None, -1), lambda: os.utime("out", (1, 1))),
    ],
)
def test_a_folder_whose_mode_owner_or_time_is_changed_becomes_a_real_one(
    event, args, change, project, scratch
):
    before = (project / "out").stat()
    scratch.hook(event, ("out", *args))
    change()
    now = (project / "out").stat()
    assert (now.st_mode, now.st_mtime, now.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime,
        before.st_ctime_ns,
    )
    assert not Path("out").is_symlink()
    assert Path("out/old.txt").read_text() == "original"


WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
ATTRIBUTES = {
    "os.chmod": (0o600, -1),
    "os.chown": (0, 0, -1),
    "os.utime": ((1, 1), None, -1),
    "os.setxattr": ("user.name", b"x", 0),
    "os.removexattr": ("user.name",),
}


@pytest.mark.parametrize("event", ATTRIBUTES)
def test_an_open_file_keeps_its_attributes_unless_it_is_in_the_mirror(event, project, scratch, tmp_path):
    """Landlock does not know them, and reading leads to the user's own file."""
    before = (project / "out/old.txt").stat()
    with open("out/old.txt") as file, pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.hook(event, (file.fileno(), *ATTRIBUTES[event]))
    assert (project / "out/old.txt").stat() == before
    for place in ("new.txt", tmp_path / "temporary" / "new.txt"):
        with open(place, "w") as file:
            scratch.hook(event, (file.fileno(), *ATTRIBUTES[event]))


@pytest.mark.parametrize("event", ["os.chmod", "os.chown", "os.utime"])
def test_a_path_that_begins_at_an_open_folder_is_found(event, project, scratch):
    folders = [os.open(path, os.O_RDONLY) for path in (project, ".")]
    args = ATTRIBUTES[event][:-1]
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.hook(event, (b"train.py", *args, folders[0]))
    assert Path("out").is_symlink()
    scratch.hook(event, ("out", *args, folders[1]))
    assert not Path("out").is_symlink()
    for folder in folders:
        os.close(folder)


BY_DESCRIPTOR = {
    "os.remove": [lambda folder: ("train.py", folder)],
    "os.rmdir": [lambda folder: ("out", folder)],
    "os.mkdir": [lambda folder: ("new", 0o777, folder)],
    "os.symlink": [lambda folder: ("/anything", "new", folder)],
    "os.rename": [lambda folder: ("a", "/dev/b", folder, -1), lambda folder: ("/dev/a", "b", -1, folder)],
    "os.link": [lambda folder: ("a", "/dev/b", folder, -1), lambda folder: ("/dev/a", "b", -1, folder)],
    "shutil.rmtree": [lambda folder: ("out", folder)],
}


@pytest.mark.parametrize(
    ("event", "args"), [(event, args) for event, forms in BY_DESCRIPTOR.items() for args in forms]
)
def test_what_a_folder_lists_is_changed_where_its_descriptor_leads(event, args, project, scratch, tmp_path):
    """Whatever the current folder is: it is not where such a path begins."""
    folders = [os.open(path, os.O_RDONLY) for path in (project, tmp_path / "temporary")]
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.hook(event, args(folders[0]))
    os.chdir(project)  # to read its data there, say
    scratch.hook(event, args(folders[1]))
    for folder in folders:
        os.close(folder)


def in_fork(act):
    """Whether this was done in a process that ends then: a hook stays for as long as its process lives."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            act()
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_a_temporary_folder_is_removed_from_any_current_folder(project, scratch, tmp_path):
    run = tmp_path / "temporary" / "run"
    (run / "deep").mkdir(parents=True)
    for name in ("file", "deep/file"):
        (run / name).touch()

    def act():
        sys.addaudithook(scratch.hook)
        os.chdir(project)
        shutil.rmtree(run)

    assert in_fork(act) and not run.exists()


def test_what_is_removed_by_a_descriptor_of_the_users_folder_is_refused(project, scratch):
    """The kernel would; here it is as without Landlock."""

    def act():
        sys.addaudithook(scratch.hook)
        os.remove("train.py", dir_fd=os.open(project, os.O_RDONLY))

    assert not in_fork(act) and (project / "train.py").exists()


def test_macos_has_another_way_to_the_path_of_a_descriptor(monkeypatch):
    import fcntl

    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(fcntl, "F_GETPATH", 50, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda number, command, buffer: b"/folder".ljust(len(buffer), b"\0"))
    assert writes("os.remove", ("x", 7)) == [Write("/folder/x", "os.remove", True)]


def test_removing_or_renaming_a_link_changes_nothing_where_it_leads(project, scratch, tmp_path):
    link = str(tmp_path / "temporary" / "latest")
    os.symlink(project / "train.py", link)
    scratch.hook("os.remove", (link, -1))
    scratch.hook("os.rename", (link, f"{link}.old", -1, -1))
    for event, args in (("os.chmod", (0o600, -1)), ("os.link", (f"{link}.hard", -1, -1))):
        with pytest.raises(PermissionError, match="a copy of its folder"):
            scratch.hook(event, (link, *args))
    os.symlink(project, f"{link}.folder")
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.hook("os.remove", (f"{link}.folder/train.py", -1))


@pytest.mark.parametrize(
    ("current", "path", "remedy"),
    [
        (".", "out/../new.txt", r"\.\. leaves that copy through a link, so use new\.txt"),
        (".", "out/../../beside.txt", r"\.\. leaves that copy through a link, so use \.\./beside\.txt"),
        (".", "/etc/new.txt", "use a relative path"),
        ("/", "new.txt", r"change back to that folder first \(os\.chdir\)"),
    ],
)
def test_a_refusal_says_what_would_be_allowed(current, path, remedy, scratch, monkeypatch):
    monkeypatch.chdir(current)
    with pytest.raises(PermissionError, match=f"below a copy of its folder: {remedy}"):
        scratch.hook("open", (path, "w", WRITING))


@pytest.mark.parametrize("path", ["out/../train.py", "out/deep/..", "./out/..", "out/../../beside.txt"])
def test_a_path_out_of_a_folder_that_is_a_link_is_refused(path, project, scratch):
    """It leads to the user's own, not to what is around the link."""
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.hook("os.chmod", (path, 0o600, -1))
    scratch.before(Write("out/new.txt"))  # now `out` is a real folder
    scratch.hook("os.chmod", ("out/../train.py", 0o600, -1))
    os.chmod("out/../train.py", 0o600)
    assert not Path("train.py").is_symlink() and (project / "train.py").stat().st_mode & 0o777 != 0o600


@pytest.mark.parametrize("path", ["../other/old.txt", "../project/../other/old.txt", "../other../old.txt"])
def test_a_path_that_begins_above_leads_to_the_mirror(path, project, mirror, monkeypatch):
    kept = Path(os.path.normpath(project / path))
    kept.parent.mkdir()
    kept.write_text("original")
    unfold(mirror, f"{mirror}{project}")
    monkeypatch.chdir(f"{mirror}{project}")
    Outputs(mirror).hook("open", (path, "w", WRITING))
    Path(path).write_text("new")
    assert kept.read_text() == "original" and Path(path).read_text() == "new"


PROGRAM, LINE = "subprocess.Popen", "os.system"


@pytest.mark.parametrize(
    ("event", "command", "is_started"),
    [
        (PROGRAM, ["git", "status"], True),
        (PROGRAM, ["/bin/sh", "-c", "git rev-parse HEAD"], True),
        (PROGRAM, ["/usr/bin/python3.12", "-c", "print(1 > 2)"], True),
        (LINE, b"nvidia-smi -L", True),
        (PROGRAM, ["rm", "status"], False),
        (PROGRAM, ["mv", "python_notes.txt", "x"], False),
        (PROGRAM, ["git", "clean"], False),
        (PROGRAM, ["git"], False),
        (PROGRAM, ["/bin/sh", "-c"], False),
        (PROGRAM, ["/bin/sh", "-c", "rm", "status"], False),
        (LINE, b"nvidia-smi ; rm a.txt", False),
        (LINE, b"uname > a.txt", False),
        (LINE, b"python=1 rm a.txt", False),
        (LINE, b"", False),
    ],
)
def test_where_the_kernel_guards_nothing_only_programs_that_read_are_started(
    event, command, is_started, scratch, monkeypatch
):
    monkeypatch.setattr(outputs, "_is_by_the_script", lambda: True)
    scratch._is_guarded = False
    refused = pytest.raises(PermissionError, match="starts no other program")
    with contextlib.nullcontext() if is_started else refused:
        scratch.hook(event, ("git", command) if event == PROGRAM else (command,))


@pytest.mark.parametrize(
    ("event", "args", "paths"),
    [
        ("open", ("a.txt", "w", WRITING), ["a.txt"]),
        ("open", (b"a.txt", "rb+", os.O_RDWR), ["a.txt"]),
        ("open", ("a.txt", None, WRITING), ["a.txt"]),
        ("open", (3, "w", WRITING), []),
        ("open", ("a.txt", "r", os.O_RDONLY), []),
        ("os.truncate", ("a.txt", 1), ["a.txt"]),
        ("os.chmod", ("a.txt", 0o600, -1), ["a.txt"]),
        ("os.chown", ("a.txt", 0, 0, -1), ["a.txt"]),
        ("os.utime", ("a.txt", (1, 1), None, -1), ["a.txt"]),
        ("os.chflags", ("a.txt", 0), ["a.txt"]),
        ("os.setxattr", ("a.txt", "user.name", b"x", 0), ["a.txt"]),
        ("os.removexattr", ("a.txt", "user.name"), ["a.txt"]),
        ("sqlite3.connect", ("a.db",), ["a.db"]),
        ("sqlite3.connect", (":memory:",), []),
        ("os.mkdir", ("a", 0o777, -1), ["a"]),
        ("os.remove", ("a.txt", -1), ["a.txt"]),
        ("os.rmdir", ("a", -1), ["a"]),
        ("os.chdir", ("a",), ["a"]),
        ("shutil.rmtree", ("a", None), ["a"]),
        ("os.rename", ("a.txt", "b.txt", -1, -1), ["a.txt", "b.txt"]),
        ("os.link", ("a.txt", "b.txt", -1, -1), ["a.txt", "b.txt"]),
        ("os.symlink", ("a.txt", "b.txt", -1), ["b.txt"]),
        ("os.listdir", ("a",), []),
    ],
)
def test_of_each_event_the_arguments_that_are_paths_are_announced(event, args, paths):
    found = writes(event, args)
    assert [write.path for write in found] == paths and {write.event for write in found} <= {event}


@pytest.mark.parametrize(
    ("event", "args", "keeps_content"),
    [
        ("open", ("a.txt", "w", WRITING), False),
        ("open", ("a.txt", "a", os.O_WRONLY | os.O_CREAT | os.O_APPEND), True),
        ("open", ("a.txt", "r+", os.O_RDWR), True),
        ("os.truncate", ("a.txt", 1), True),
        ("os.chmod", ("a.txt", 0o600, -1), True),
        ("sqlite3.connect", ("a.db",), True),
    ],
)
def test_a_file_needs_its_contents_unless_all_of_it_is_replaced(event, args, keeps_content):
    assert writes(event, args) == [Write(args[0], event, keeps_content)]


def test_a_file_that_is_called_as_a_mode_is_one_as_any_other(project, scratch, tmp_path, monkeypatch):
    (project / "w").write_text("original")
    os.symlink(project / "w", "w")
    scratch.hook("open", ("log.txt", "w", WRITING))
    assert Path("w").read_text() == "original"
    monkeypatch.chdir(project)  # where its data are, say: nothing that is allowed is relative there
    scratch.hook("open", (str(tmp_path / "temporary" / "x"), "w", WRITING))


def test_removing_and_renaming_leave_the_folder_alone(project, scratch):
    for path, event in (("out/old.txt", "os.remove"), ("out/deep/kept.txt", "os.rename")):
        scratch.before(Write(path, event))
        os.remove(path)
    os.rename("out/deep", "out/moved")
    scratch.before(Write("out/moved/new.txt"))
    Path("out/moved/new.txt").write_text("more")
    assert (project / "out/old.txt").exists() and (project / "out/deep/kept.txt").exists()
    assert not (project / "out/deep/new.txt").exists()
    assert os.listdir("out") == ["moved"] and os.listdir("out/moved") == ["new.txt"]


def test_a_path_outside_is_refused(project, scratch, tmp_path):
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.before(Write(str(project / "absolute.txt")))
    scratch.before(Write(str(tmp_path / "temporary" / "x")))
    scratch.before(Write("/dev/null"))
    scratch.before(Write(str(project), "os.mkdir"))  # there already: makedirs(exist_ok=True)
    scratch.before(Write(str(tmp_path / "new"), "os.mkdir"))  # on the way to a cache


def test_what_perfkit_writes_in_one_thread_excuses_no_other_thread(project, scratch):
    entered, left = threading.Event(), threading.Event()

    def perfkits_own():
        with scratch.ignored():
            entered.set()
            left.wait(60)

    thread = threading.Thread(target=perfkits_own)
    thread.start()
    entered.wait(60)
    with scratch.ignored():
        left.set()  # the other one leaves before this one does
        thread.join()
    scratch.before(Write("out/old.txt"))
    Path("out/old.txt").write_text("more")
    assert (project / "out/old.txt").read_text() == "original"


def test_a_file_that_is_opened_for_changes_is_copied_with_its_size_said_or_refused(
    project, scratch, monkeypatch
):
    flags = os.O_RDWR  # NumPy's memmap begins with "r+"
    monkeypatch.setattr(outputs, "_SAID", 4)
    scratch.hook("open", ("out/old.txt", "r+", flags))
    assert scratch.notes == [f"{project}/out/old.txt was copied (0 MB), as the script opens it for changes"]
    monkeypatch.setattr(outputs, "_MOST", 4)
    with pytest.raises(PermissionError, match="open it for reading"):
        scratch.hook("open", ("out/deep/kept.txt", "r+", flags))
    scratch.hook("open", ("out/deep/kept.txt", "r", os.O_RDONLY))
    scratch.hook("open", ("out/deep/kept.txt", "w", os.O_WRONLY | os.O_TRUNC))  # nothing of it is copied


def test_small_folders_are_made_real_and_others_stay_links_as_a_whole(
    project, scratch, tmp_path, monkeypatch
):
    monkeypatch.setattr("perfkit.additions.guard.outputs._MOST_OF_A_FOLDER", 4)
    monkeypatch.setattr("perfkit.additions.guard.outputs._MOST_OF_A_FILE", 100)
    for name in ("many/sub/1.txt", "many/sub/2.txt", "many/3.txt", "many/4.txt", ".git/index", "large.bin"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x" * (101 if name == "large.bin" else 1))
    os.symlink(".", project / "loop")
    mirror = tmp_path / "second"
    here = Path(f"{mirror}{project}")
    unfold(str(mirror), str(here))
    fill(str(mirror), str(here))
    links = {path.name for path in here.iterdir() if path.is_symlink()}
    assert links == {"many", ".git", "large.bin", "loop"}
    assert not (here / "out/deep/kept.txt").is_symlink()


def test_a_folder_of_too_many_files_gets_no_links_and_says_why(project, tmp_path, monkeypatch):
    """Each process that is started would make them, often in memory."""
    for number in range(4):
        (project / f"{number}.jpg").touch()
    monkeypatch.setattr(outputs, "_MOST_LINKS", 4)
    mirror = tmp_path / "second"
    with pytest.raises(OSError, match="over 4 entries are too many to mirror.*with fewer entries") as refused:
        unfold(str(mirror), f"{mirror}{project}/out")
    assert not Path(f"{mirror}{project}").exists()
    assert isinstance(refused.value, PerfkitError), "it is not a bug"
    many = OSError(errno.EMLINK, "Too many links", "x")
    assert "entries" not in str(in_words(many)), "what others link has other reasons"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [(".keras/keras.json", "make ~/.keras first"), (".ssh/config", "relative"), ("x", "relative")],
)
def test_a_hidden_folder_of_the_home_that_is_not_there_yet_is_named(name, remedy, scratch):
    with pytest.raises(PermissionError, match=remedy):
        scratch.hook("open", (os.path.join(os.environ["HOME"], name), "w", WRITING))


def test_a_hidden_folder_that_may_not_be_read_keeps_no_script_from_starting(tmp_path):
    """One in the home folder that a program of root made, say."""
    if not landlock.is_there():
        pytest.skip("this kernel has no Landlock")
    for name, mode in (("", 0o755), ("private", 0), ("open", 0o777)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name).chmod(mode)

    def act():
        os.chdir(tmp_path)
        if not os.getuid():  # root may read everything
            os.setuid(65534)
        landlock.restrict(["private", "open"])
        Path("open/file.txt").write_text("new")

    assert in_fork(act)
    assert (tmp_path / "open/file.txt").read_text() == "new"


def test_a_kernel_without_landlock_is_no_error(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert landlock.version() == 0 and not landlock.is_there()

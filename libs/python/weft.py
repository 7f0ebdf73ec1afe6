"""Weft's helper for training scripts: checkpoints that are complete or not there at all, and where to resume.

    import torch, weft

    start = 0
    save = weft.resume()                        # None on a first start
    if save:
        state = torch.load(save.path("state.pt"))
        start = save.step + 1
    for step in range(start, steps):
        ...
        if weft.due(full=True):                 # the job's cadence: checkpoint.full in the manifest
            with weft.save(step, full=True, ranks=[0]) as dir:
                if dir:                         # None on ranks that are not named
                    torch.save(state, dir + "/state.pt")
        if weft.stopping():                     # SIGTERM came; the job's grace is running
            break

Standard library only; Python 3.8 and newer. Files are the truth: saving needs neither agent nor network. Without Weft the
same calls write to ./checkpoints, so a script runs unchanged on a laptop.

How a save is made, so that a crash at any instant leaves nothing that could be taken for a complete one: a rank writes
into a staging directory of its own, syncs every file, writes part.json with sizes and SHA-256 of each, syncs the
directories, and publishes the whole by one rename that never replaces anything. A save is complete when every rank that
was declared has published its part, with the same attempt, step and class. Names are never used twice.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import stat
import time
import uuid

__all__ = ["save", "resume", "latest", "due", "stopping", "beat", "rank", "world_size", "local_rank", "attempt", "root", "Save"]

PART = "part.json"
_STAGING = ".staging"
_NAME = re.compile(r"a([1-9]\d*)-s(\d{12,})-(light|full)")
_STAGED = re.compile(r"(a[1-9]\d*-s\d{12,}-(?:light|full))\.r(\d+)\.(\d+)")
_CHUNK = 1 << 20

# What one part may be: its report must fit into one message of the bus.
_MAX_FILES, _MAX_NAME, _MAX_NAMES = 1000, 512, 128 << 10
# And what its reader walks through: directories of a part, and how deep they lie.
_MAX_DIRS, _MAX_DEPTH = 1000, 15


def _int(*names, default=0):
    for name in names:
        value = os.environ.get(name, "")
        if value:
            return int(value)
    return default


def _ranked(weft, usual):
    """Where to read a rank: a torchrun that the job's script starts gives its workers ranks of their own, while they inherit
    the one rank that Weft gave to the script."""
    return (usual, weft) if os.environ.get("TORCHELASTIC_RUN_ID") else (weft, usual)


def rank():
    """This process's rank in the job, from 0."""
    return _int(*_ranked("WEFT_RANK", "RANK"))


def world_size():
    """How many ranks the job has."""
    return _int(*_ranked("WEFT_WORLD_SIZE", "WORLD_SIZE"), default=1)


def local_rank():
    """This process's rank on its node, from 0."""
    return _int("LOCAL_RANK")


def attempt():
    """Which try of the job this is, from 1; 0 without Weft."""
    return _int("WEFT_ATTEMPT")


def root():
    """Directory of the job's saves."""
    return os.environ.get("WEFT_CHECKPOINT_DIR") or os.path.abspath("checkpoints")


class Save:
    """One complete save, to restore from. `dir, step = save` works, too."""

    def __init__(self, dir):
        self.dir = dir.rstrip("/")
        self.name = os.path.basename(self.dir)
        m = _NAME.fullmatch(self.name)
        if not m:
            raise ValueError("%s is not a save: its name must be like a1-s000000000100-full" % dir)
        self.attempt, self.step, self.full = int(m.group(1)), int(m.group(2)), m.group(3) == "full"

    def ranks(self):
        """Ranks that contributed, sorted."""
        found = [int(n[5:]) for n in os.listdir(self.dir) if re.fullmatch(r"rank-\d+", n)]
        return sorted(r for r in found if os.path.exists(self.path(PART, of=r)))

    def path(self, file="", of=None):
        """Path of a file in a rank's part: this rank's if it contributed, else the lowest contributing rank's."""
        if of is None:
            ranks = self.ranks()
            if not ranks:
                raise FileNotFoundError(errno.ENOENT, "the save has no part", self.dir)
            of = rank() if rank() in ranks else ranks[0]
        return os.path.join(self.dir, "rank-%d" % of, file)

    def complete(self):
        """Whether every declared rank has published its part. It does not read the bytes: verify does."""
        try:
            ranks = self.ranks()
            return _parse_ranks(self._part(ranks[0])["declared"]) <= set(ranks)
        except (OSError, ValueError, KeyError, IndexError):
            return False

    def verify(self):
        """Reads every byte back; raises ValueError or OSError if anything is not as it was saved."""
        if not self.complete():
            raise ValueError("%s is not complete" % self.dir)
        for r in self.ranks():
            for f in self._part(r)["files"]:
                path = self.path(f["name"], of=r)
                if _digest(path) != (f["bytes"], f["sha256"]):
                    raise ValueError("%s is not as it was saved" % path)

    def _part(self, of):
        with open(self.path(PART, of=of), encoding="utf-8") as f:
            return json.load(f)

    def __iter__(self):
        return iter((self.dir, self.step))

    def __repr__(self):
        return "weft.Save(%r, step=%d)" % (self.dir, self.step)


def resume():
    """The save to restore from, as Weft chose and verified it; None to start from the beginning.

    Without Weft it is the newest full save in ./checkpoints whose bytes are as they were saved.
    """
    if "WEFT_RESUME_FROM" in os.environ:
        dir = os.environ["WEFT_RESUME_FROM"]
        return Save(dir) if dir else None
    for s in _complete(True):
        try:
            s.verify()
            return s
        except (OSError, ValueError):
            pass
    return None


def latest(full=None):
    """The newest complete save of this job by attempt and step, or None; full=True looks at full saves only.

    It is for looking: what to restore from is what resume says.
    """
    return next(_complete(full), None)


def _complete(full):
    """Complete saves, newest first: by attempt and step, never by a clock."""
    try:
        names = [n for n in os.listdir(root()) if _NAME.fullmatch(n)]
    except FileNotFoundError:
        return
    saves = [Save(os.path.join(root(), n)) for n in names]
    for s in sorted(saves, key=lambda s: (s.attempt, s.step, s.full), reverse=True):
        if (full is None or s.full == full) and s.complete():
            yield s


_saved_at = {}
_START = time.monotonic()


def due(full=True):
    """Whether the job's cadence asks for a save now: checkpoint.full or checkpoint.light of the manifest.

    WEFT_FULL_EVERY and WEFT_LIGHT_EVERY, in seconds, overrule it; 0 is never. A full save counts as a light one, too.
    Each rank has its own clock: decide on one rank and broadcast, or save by step count, where ranks must agree.
    """
    names = ("WEFT_FULL_EVERY", "WEFT_CHECKPOINT_FULL") if full else ("WEFT_LIGHT_EVERY", "WEFT_CHECKPOINT_LIGHT")
    every = next((float(os.environ[n]) for n in names if os.environ.get(n)), 3600.0 if full else 600.0)
    return every > 0 and time.monotonic() - _saved_at.get(full, _START) >= every


def _saved(full):
    _saved_at[full] = time.monotonic()
    if full:
        _saved_at[False] = _saved_at[True]


@contextlib.contextmanager
def save(step, full=True, ranks="all"):
    """Stage this rank's part of a save; on a clean exit of the block it is published, on an exception it vanishes.

    step: the step that the state is the result of. ranks: which ranks contribute, "all" or a list; the same on every rank.
    Yields the directory to write into, or None on a rank that does not contribute. Whatever can't be written (a full disk
    is an OSError with errno ENOSPC) is raised, and then nothing was published and nothing is left behind.
    """
    declared = list(range(world_size())) if isinstance(ranks, str) and ranks == "all" else sorted(set(int(r) for r in ranks))
    if not declared or declared[0] < 0 or declared[-1] >= world_size():
        raise ValueError("ranks must name ranks of this job, 0 to %d" % (world_size() - 1))
    if int(step) != step or not 0 <= step < 1 << 63:
        raise ValueError("step must be a whole number from 0 on")
    if rank() not in declared:
        yield None
        _saved(full)
        return
    part = _Part(int(step), full, declared)
    part.stage()
    try:
        yield part.staging
        part.publish()
    except BaseException:
        part.drop()
        raise
    finally:
        _active.discard(part.staging)
    _saved(full)


_active = set()  # staging directories that this process is writing


class _Part:
    """One rank's part, from staging to its place."""

    def __init__(self, step, full, declared):
        self.step, self.full, self.declared = step, full, declared
        self.attempt = attempt() or 1
        self.id = uuid.uuid4().hex
        self.save = "a%d-s%012d-%s" % (self.attempt, step, "full" if full else "light")
        self.staging = os.path.join(root(), _STAGING, "%s.r%d.%d" % (self.save, rank(), os.getpid()))
        self.dir = os.path.join(root(), self.save)
        self.place = os.path.join(self.dir, "rank-%d" % rank())

    def stage(self):
        if os.path.lexists(self.place):
            raise FileExistsError(errno.EEXIST, "this rank saved this step already, and a save is never overwritten; "
                                  "resume from it, or save elsewhere", self.place)
        if self.staging in _active:
            raise FileExistsError(errno.EEXIST, "this rank is just saving this step", self.staging)
        self.sweep()
        _makedirs(os.path.dirname(self.staging))
        os.mkdir(self.staging)
        _active.add(self.staging)

    def sweep(self):
        """Removes what writers that can't finish any more left in staging: this rank's, and on rank 0 those of every rank
        of earlier attempts, which may have been more. An earlier attempt's writer that lives on somewhere then fails."""
        base = os.path.dirname(self.staging)
        try:
            names = os.listdir(base)
        except FileNotFoundError:
            return
        for n in names:
            m = _STAGED.fullmatch(n)
            path = os.path.join(base, n)
            if not m or path in _active:
                continue
            by, of, pid = int(_NAME.fullmatch(m.group(1)).group(1)), int(m.group(2)), int(m.group(3))
            if by < self.attempt:
                stale = of == rank() or rank() == 0
            else:
                stale = by == self.attempt and of == rank() and (pid == os.getpid() or not _alive(pid))
            if stale:
                shutil.rmtree(path, ignore_errors=True)

    def publish(self):
        self.write_record(self.sync_files())
        self.sync_dirs()
        self.make_save_dir()
        self.rename()
        _fsync_dir(self.dir)

    def sync_files(self):
        """Syncs and hashes every file; returns their records, sorted by name."""
        files, subdirs = [], 0
        for base, dirs, names in os.walk(self.staging):
            subdirs += len(dirs)
            for n in dirs + names:
                path = os.path.join(base, n)
                name = os.path.relpath(path, self.staging)
                mode = os.lstat(path).st_mode
                if n in dirs and stat.S_ISDIR(mode):
                    if name.count("/") >= _MAX_DEPTH:
                        raise ValueError("%s: directories of a save are nested at most %d deep" % (path, _MAX_DEPTH))
                    continue
                if not stat.S_ISREG(mode):
                    raise ValueError("%s: a save holds regular files only" % path)
                _check_name(name)
                size, digest = _digest(path, sync=True)
                files.append({"name": name, "bytes": size, "sha256": digest})
        if not files:
            raise ValueError("nothing was written into the save's directory; declare only ranks that write, such as ranks=[0]")
        if subdirs > _MAX_DIRS:
            raise ValueError("a rank's part of a save holds at most %d directories; this one has %d" % (_MAX_DIRS, subdirs))
        if len(files) > _MAX_FILES or sum(len(os.fsencode(f["name"])) for f in files) > _MAX_NAMES:
            raise ValueError("a rank's part of a save holds at most %d files with %d bytes of names; this one has %d: write "
                             "fewer, larger files" % (_MAX_FILES, _MAX_NAMES, len(files)))
        return sorted(files, key=lambda f: os.fsencode(f["name"]))

    def write_record(self, files):
        record = {
            "weft_part": 1,
            "id": self.id,
            "tenant": os.environ.get("WEFT_TENANT", ""),
            "job": os.environ.get("WEFT_JOB", ""),
            "attempt": self.attempt,
            "step": self.step,
            "class": "full" if self.full else "light",
            "save": self.save,
            "declared": _format_ranks(self.declared),
            "rank": rank(),
            "world_size": world_size(),
            "node": os.environ.get("WEFT_NODE", ""),
            "created_ns": time.time_ns(),
            "files": files,
        }
        with open(os.path.join(self.staging, PART), "x", encoding="utf-8") as f:
            json.dump(record, f, indent=1)
            f.flush()
            os.fsync(f.fileno())

    def sync_dirs(self):
        for base, _, _ in os.walk(self.staging, topdown=False):
            _fsync_dir(base)

    def make_save_dir(self):
        try:
            os.mkdir(self.dir)
        except FileExistsError:
            pass
        _fsync_dir(root())  # also where another rank made it: its sync may not have come yet

    def rename(self):
        try:
            _rename_new(self.staging, self.place)
        except OSError:
            # On a network file system an answer may have been lost, and the second try then failed: look who is there.
            if not self.published():
                raise

    def published(self):
        try:
            with open(os.path.join(self.place, PART), encoding="utf-8") as f:
                return json.load(f)["id"] == self.id
        except (OSError, ValueError, KeyError):
            return False

    def drop(self):
        shutil.rmtree(self.staging, ignore_errors=True)


def _check_name(name):
    bad = any(ord(c) < 0x20 or ord(c) == 0x7F or c in "\\\ufffd" or 0xD800 <= ord(c) < 0xE000 for c in name)
    if bad or name == PART or len(os.fsencode(name)) > _MAX_NAME:
        raise ValueError("%r may not name a file of a save" % name)


def _digest(path, sync=False):
    """Size and SHA-256 of a file, which is never a link; synced first, so that what is hashed is what lasts."""
    h, size = hashlib.sha256(), 0
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0))
    try:
        if sync:
            os.fsync(fd)
        while True:
            b = os.read(fd, _CHUNK)
            if not b:
                return size, h.hexdigest()
            h.update(b)
            size += len(b)
    finally:
        os.close(fd)


def _format_ranks(ranks):
    """0-3,7 for [0, 1, 2, 3, 7]."""
    runs = []
    for r in ranks:
        if runs and r == runs[-1][1] + 1:
            runs[-1][1] = r
        else:
            runs.append([r, r])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in runs)


def _parse_ranks(text):
    out = set()
    for run in text.split(","):
        a, _, b = run.partition("-")
        out.update(range(int(a), int(b or a) + 1))
    return out


def _makedirs(path):
    """Makes a directory and those above it, so that they last: each new name is synced in its parent."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _makedirs(parent)
    try:
        os.mkdir(path)
    except FileExistsError:
        pass
    _fsync_dir(parent)


def _fsync_dir(path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_RENAME_NOREPLACE = 1
_AT_FDCWD = -100


def _rename_new(src, dst):
    """Renames a directory, never onto anything that exists."""
    e = _renameat2(src, dst)
    if e is None or e in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        # No such call here, as on NFS. rename(2) replaces a directory only if it is empty, and a published part never is.
        os.rename(src, dst)
    elif e:
        raise OSError(e, os.strerror(e), dst)


def _renameat2(src, dst):
    """0, an errno, or None if this system has no such call."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    if call(_AT_FDCWD, os.fsencode(src), _AT_FDCWD, os.fsencode(dst), ctypes.c_uint(_RENAME_NOREPLACE)) == 0:
        return 0
    return ctypes.get_errno()


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


_stop = {"asked": False, "armed": None}


def stopping():
    """Whether the job was asked to stop (SIGTERM): save and leave; SIGKILL follows after the job's grace.

    The first call arms it, in the main thread, so call it once before the loop. A handler that was there before is called,
    too. Ranks get the signal at different instants: let them agree on the step at which they stop.
    """
    if _stop["armed"] is None:
        before = signal.getsignal(signal.SIGTERM)
        owner = os.getpid()

        def asked(signum, frame):
            if os.getpid() != owner:  # a process forked from this one, such as a data loader: it should just end
                signal.signal(signum, signal.SIG_DFL)
                os.kill(os.getpid(), signum)
                return
            _stop["asked"] = True
            if callable(before):
                before(signum, frame)

        signal.signal(signal.SIGTERM, asked)
        _stop["armed"] = owner
    return _stop["asked"]


_beat = {"at": None}


def beat(step, **metrics):
    """Tell Weft that the script makes progress, with numbers worth seeing (loss=0.1). Call it every step: at most one a
    second is passed on. It never fails."""
    file = os.environ.get("WEFT_BEAT_FILE")
    now = time.monotonic()
    if not file or _beat["at"] is not None and now - _beat["at"] < 1:
        return
    _beat["at"] = now
    try:
        tmp = "%s.%d" % (file, os.getpid())
        with open(tmp, "w", encoding="utf-8") as f:
            json.dump({"rank": rank(), "step": step, "time_ns": time.time_ns(), "metrics": metrics}, f, default=float)
        os.rename(tmp, file)
    except (OSError, TypeError, ValueError):
        pass

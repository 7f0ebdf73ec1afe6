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
import time

__all__ = ["save", "resume", "latest", "due", "stopping", "beat", "rank", "world_size", "local_rank", "attempt", "Save"]

PART = "part.json"
_STAGING = ".staging"
_NAME = re.compile(r"^a(\d+)-s(\d{12})-(light|full)$")
_CHUNK = 1 << 20


def _int(*names, default=0):
    for name in names:
        value = os.environ.get(name, "")
        if value:
            return int(value)
    return default


def rank():
    """This process's rank in the job, from 0."""
    return _int("WEFT_RANK", "RANK")


def world_size():
    """How many ranks the job has."""
    return _int("WEFT_WORLD_SIZE", "WORLD_SIZE", default=1)


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
    """One complete save, to restore from."""

    def __init__(self, dir):
        m = _NAME.match(os.path.basename(dir.rstrip("/")))
        if not m:
            raise ValueError("%s is not a save: its name must be a<attempt>-s<step>-<class>" % dir)
        self.dir = dir
        self.name = os.path.basename(dir.rstrip("/"))
        self.attempt, self.step, self.full = int(m.group(1)), int(m.group(2)), m.group(3) == "full"

    def ranks(self):
        """Ranks that contributed, sorted."""
        found = [int(n[5:]) for n in os.listdir(self.dir) if n.startswith("rank-") and n[5:].isdigit()]
        return sorted(r for r in found if os.path.exists(os.path.join(self.dir, "rank-%d" % r, PART)))

    def path(self, file="", of=None):
        """Path of a file in a rank's part: this rank's if it contributed, else the lowest contributing rank's."""
        if of is None:
            ranks = self.ranks()
            if not ranks:
                raise FileNotFoundError(errno.ENOENT, "the save has no part", self.dir)
            of = rank() if rank() in ranks else ranks[0]
        return os.path.join(self.dir, "rank-%d" % of, file)

    def complete(self):
        """Whether every declared rank has published its part."""
        try:
            ranks = self.ranks()
            with open(os.path.join(self.dir, "rank-%d" % ranks[0], PART)) as f:
                return set(json.load(f)["declared"]) <= set(ranks)
        except (OSError, ValueError, KeyError, IndexError):
            return False

    def __repr__(self):
        return "weft.Save(%r, step=%d)" % (self.dir, self.step)


def resume():
    """The save to restore from, as Weft chose and verified it; None to start from the beginning.

    Without Weft it is the newest complete save in ./checkpoints.
    """
    if "WEFT_JOB" in os.environ:
        dir = os.environ.get("WEFT_RESUME_FROM", "")
        return Save(dir) if dir else None
    return latest()


def latest(full=None):
    """The newest complete save of this job by attempt and step, or None; full=True looks at full saves only."""
    best = None
    try:
        names = os.listdir(root())
    except FileNotFoundError:
        return None
    for name in names:
        if not _NAME.match(name):
            continue
        s = Save(os.path.join(root(), name))
        if full is not None and s.full != full:
            continue
        if (best is None or (s.attempt, s.step) > (best.attempt, best.step)) and s.complete():
            best = s
    return best


_saved_at = {}


def due(full=True):
    """Whether the job's cadence asks for a save now (WEFT_FULL_EVERY, WEFT_LIGHT_EVERY: seconds, set by the agent).

    Each rank has its own clock: decide on one rank and broadcast, or save by step count, where ranks must agree.
    """
    every = float(os.environ.get("WEFT_FULL_EVERY" if full else "WEFT_LIGHT_EVERY") or (3600 if full else 600))
    return time.monotonic() - _saved_at.setdefault(full, _START) >= every


_START = time.monotonic()


@contextlib.contextmanager
def save(step, full=True, ranks="all"):
    """Stage this rank's part of a save; on a clean exit of the block it is published, on an exception it vanishes.

    step: the step that the state is the result of. ranks: which ranks contribute, "all" or a list; the same on every rank.
    Yields the directory to write into, or None on a rank that does not contribute.
    """
    declared = list(range(world_size())) if ranks == "all" else sorted(set(int(r) for r in ranks))
    if not declared or declared[0] < 0 or declared[-1] >= world_size():
        raise ValueError("ranks must name ranks of this job, 0 to %d" % (world_size() - 1))
    if not 0 <= step < 10**12:
        raise ValueError("step must be from 0 to 10**12 - 1")
    if rank() not in declared:
        yield None
        _saved_at[full] = time.monotonic()
        return
    part = _Part(int(step), full, declared)
    dir = part.stage()
    try:
        yield dir
        part.publish()
    except BaseException:
        part.drop()
        raise
    _saved_at[full] = time.monotonic()


class _Part:
    """One rank's part, from staging to its place."""

    def __init__(self, step, full, declared):
        self.step, self.full, self.declared = step, full, declared
        self.name = "a%d-s%012d-%s" % (attempt(), step, "full" if full else "light")
        self.staging = os.path.join(root(), _STAGING, "%s.r%d.%d" % (self.name, rank(), os.getpid()))
        self.dir = os.path.join(root(), self.name)
        self.place = os.path.join(self.dir, "rank-%d" % rank())

    def stage(self):
        if os.path.exists(self.place):
            raise FileExistsError(errno.EEXIST, "this rank saved this step already; a save is never overwritten", self.place)
        self.sweep()
        os.makedirs(self.staging)
        return self.staging

    def sweep(self):
        """Removes what dead processes of this rank left in staging."""
        base = os.path.dirname(self.staging)
        try:
            names = os.listdir(base)
        except FileNotFoundError:
            return
        for n in names:
            m = re.match(r"^.*\.r(\d+)\.(\d+)$", n)
            if m and int(m.group(1)) == rank() and (int(m.group(2)) == os.getpid() or not _alive(int(m.group(2)))):
                shutil.rmtree(os.path.join(base, n), ignore_errors=True)

    def publish(self):
        files = self.sync_files()
        self.write_record(files)
        self.sync_dirs()
        self.make_save_dir()
        self.rename()
        _fsync_dir(self.dir)

    def sync_files(self):
        """Syncs and hashes every file; returns their records, sorted by name."""
        files = []
        for base, dirs, names in os.walk(self.staging):
            dirs.sort()
            for n in sorted(names):
                path = os.path.join(base, n)
                if os.path.islink(path) or not os.path.isfile(path):
                    raise ValueError("%s: a save holds regular files only" % path)
                h, size = hashlib.sha256(), 0
                with open(path, "rb+") as f:
                    os.fsync(f.fileno())
                    while True:
                        b = f.read(_CHUNK)
                        if not b:
                            break
                        h.update(b)
                        size += len(b)
                files.append({"name": os.path.relpath(path, self.staging), "bytes": size, "sha256": h.hexdigest()})
        if not files:
            raise ValueError("nothing was written into the save's directory")
        return files

    def write_record(self, files):
        record = {
            "weft_part": 1,
            "save": self.name,
            "job": os.environ.get("WEFT_JOB", ""),
            "node": os.environ.get("WEFT_NODE", ""),
            "attempt": attempt(),
            "step": self.step,
            "class": "full" if self.full else "light",
            "declared": self.declared,
            "rank": rank(),
            "files": files,
        }
        with open(os.path.join(self.staging, PART), "x") as f:
            json.dump(record, f, sort_keys=True, indent=1)
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
        _fsync_dir(root())

    def rename(self):
        _rename_new(self.staging, self.place)

    def drop(self):
        shutil.rmtree(self.staging, ignore_errors=True)


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
    try:
        fn = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        fn = None
    if fn is not None:
        if fn(_AT_FDCWD, os.fsencode(src), _AT_FDCWD, os.fsencode(dst), _RENAME_NOREPLACE) == 0:
            return
        e = ctypes.get_errno()
        if e not in (errno.ENOSYS, errno.EINVAL):
            raise OSError(e, os.strerror(e), dst)
    # No such call on this file system. rename(2) refuses to replace a directory that is not empty, and a part never is.
    os.rename(src, dst)


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


_stop = {"asked": False, "armed": False}


def stopping():
    """Whether the job was asked to stop (SIGTERM): save and leave; SIGKILL follows after the job's grace.

    The first call arms it, so call it once before the loop. A handler that was there before is called, too.
    """
    if not _stop["armed"]:
        before = signal.getsignal(signal.SIGTERM)

        def asked(signum, frame):
            _stop["asked"] = True
            if callable(before):
                before(signum, frame)

        signal.signal(signal.SIGTERM, asked)
        _stop["armed"] = True
    return _stop["asked"]


def beat(step, **metrics):
    """Tell Weft that the script makes progress, with numbers worth seeing (loss=0.1). Costs microseconds; never fails."""
    file = os.environ.get("WEFT_BEAT_FILE")
    if not file:
        return
    try:
        tmp = "%s.%d" % (file, os.getpid())
        with open(tmp, "w") as f:
            json.dump({"rank": rank(), "step": step, "time_ns": time.time_ns(), "metrics": metrics}, f)
        os.rename(tmp, file)
    except OSError:
        pass

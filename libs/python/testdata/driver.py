"""Drives weft.py for its tests: driver.py COMMAND ARGUMENTS, with weft.py's directory in PYTHONPATH."""

import errno
import hashlib
import json
import os
import shutil
import signal
import sys


def content(step, name):
    """What a file of a save holds: no two saves hold the same, so that a mixture shows."""
    return hashlib.sha512(("%d %s" % (step, name)).encode()).digest() * 2000


FILES = ("state.bin", "optim/0.bin")


def write(dir, step, point=lambda where: None):
    os.mkdir(os.path.join(dir, "optim"))
    for name in FILES:
        b = content(step, name)
        with open(os.path.join(dir, name), "wb", buffering=0) as f:
            point("write " + name)
            f.write(b[: len(b) // 2])
            point("write half of " + name)
            f.write(b[len(b) // 2 :])
        point("wrote " + name)


def check(save):
    """Every part of the save is whole, by what was written and not only by what its record says."""
    save.verify()
    for r in save.ranks():
        for name in FILES:
            with open(save.path(name, of=r), "rb") as f:
                assert f.read() == content(save.step, name), "%s of rank %d is not what step %d wrote" % (name, r, save.step)


class Calls:
    """os as weft.py sees it, with a point before and after every call that changes a file."""

    WATCHED = ("mkdir", "rename", "open", "fsync", "close", "read")

    def __init__(self, point):
        self.point = point

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.WATCHED:
            return real

        def call(*a, **k):
            self.point("before " + name)
            result = real(*a, **k)
            self.point("after " + name)
            return result

        return call


def instrument(weft, point, nfs):
    """Puts a point around every system call of a save, and lets its record reach the disk line by line. It returns whether
    the part is published, by looking at the directory."""
    weft.os = Calls(point)
    weft.open = lambda *a, **k: open(*a, buffering=1, **k)
    real = weft._rename_new

    def rename(src, dst):
        placed.append(dst)
        real(src, dst)

    placed = []
    weft._rename_new = rename
    if nfs:
        weft._renameat2 = lambda src, dst: None
    return lambda: any(os.path.exists(p) for p in placed)


def in_child(work):
    """Runs work in a process that has not imported weft; returns its wait status and what it wrote to its pipe."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(r)
            work(lambda text: os.write(w, (text + "\n").encode()))
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(w)
    with os.fdopen(r) as f:
        said = f.read().splitlines()
    return os.waitpid(pid, 0)[1], said


def newest():
    """The step that a fresh process resumes from, after it looked at every byte; None if there is no save."""

    def look(say):
        import weft

        os.environ.pop("WEFT_RESUME_FROM", None)
        save = weft.resume()
        if save:
            check(save)
        for s in weft._complete(None):
            check(s)
        say(json.dumps(save.step if save else None))

    status, said = in_child(look)
    assert status == 0 and len(said) == 1, "nothing whole to resume from after: %s" % said
    return json.loads(said[0])


def kill(nfs, first):
    """Saves in a loop; try n is killed at the n-th point of the protocol. After each, a fresh process resumes.

    first: every try is the job's first save, and only system calls are points. Else every line of weft.py is one, too, and
    there are older saves and one killed writer's leavings.
    """
    outcomes = {"points": 0, "lost": 0, "kept": 0}
    n, have, root = 0, None, os.environ["WEFT_CHECKPOINT_DIR"]
    while True:
        n += 1
        if first:
            have = None
            shutil.rmtree(root, ignore_errors=True)
        elif not os.path.isdir(root + "/.staging") or not os.listdir(root + "/.staging"):
            os.makedirs(root + "/.staging/a%d-s000000000000-full.r0.1/optim" % n)
        step = 0 if have is None else have + 1
        os.environ["WEFT_ATTEMPT"] = str(n + 1)

        def work(say):
            import weft

            seen = [0]

            def point(where):
                seen[0] += 1
                if seen[0] == n:
                    sys.settrace(None)
                    say(json.dumps({"at": where, "renamed": renamed()}))
                    os.kill(os.getpid(), signal.SIGKILL)

            renamed = instrument(weft, point, nfs)

            def lines(frame, event, arg):
                if event == "line":
                    point("%s:%d" % (frame.f_code.co_name, frame.f_lineno))
                return lines

            if not first:
                sys.settrace(lambda frame, event, arg: lines if frame.f_code.co_filename == weft.__file__ else None)
            with weft.save(step) as dir:
                write(dir, step, point)
            sys.settrace(None)

        status, said = in_child(work)
        got = newest()
        if status == 0:
            assert got == step, "a save that returned is not the newest: %s, not %d" % (got, step)
            print(json.dumps(outcomes))
            return
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "try %d ended by itself: %d" % (n, status)
        was = json.loads(said[0])
        want = step if was["renamed"] else have
        assert got == want, "killed at %s: resumed from %s, not %s" % (was["at"], got, want)
        outcomes["points"] += 1
        outcomes["kept" if was["renamed"] else "lost"] += 1
        have = got


def fail(nfs):
    """Try n fails with a full disk at the n-th system call: the error reaches the script, and nothing is left behind."""
    outcomes = {"points": 0}
    n, have, quiet = 0, None, 0
    while True:
        n += 1
        step = 0 if have is None else have + 1
        os.environ["WEFT_ATTEMPT"] = str(n)

        def work(say):
            import weft

            seen = [0]

            def point(where):
                seen[0] += 1
                if seen[0] == n and not where.startswith("after"):
                    say(json.dumps(renamed()))
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where)

            renamed = instrument(weft, point, nfs)
            try:
                with weft.save(step) as dir:
                    write(dir, step, point)
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
                say('"raised"')

        status, said = in_child(work)
        assert status == 0, "try %d: %s" % (n, said)
        got, staging = newest(), os.path.join(os.environ["WEFT_CHECKPOINT_DIR"], ".staging")
        left = os.listdir(staging) if os.path.exists(staging) else []
        assert not left, "left behind: %s" % left
        if said:
            outcomes["points"] += 1
            quiet = 0
            # Past the rename the part is there and whole; that its name lasts is what could not be made sure of. What
            # fails at the rename itself is looked up, as an answer may have been lost.
            want = step if json.loads(said[0]) else have
            assert got == want, "failed at call %d: resumed from %s, not %s" % (n, got, want)
            assert len(said) == 2 and said[1] == '"raised"', "try %d: the error did not reach the script" % n
        else:
            # A call's second point never fails, so three tries in a row without a failure are behind the last call.
            assert got == step
            quiet += 1
            if quiet > 2:
                print(json.dumps(outcomes))
                return
        have = got


def save(step, ranks, die):
    """One rank's part. die: killed before it publishes."""
    import weft

    declared = "all" if ranks == "all" else [int(r) for r in ranks.split(",")]
    if die == "die":
        weft._rename_new = lambda src, dst: os.kill(os.getpid(), signal.SIGKILL)
    with weft.save(int(step), ranks=declared) as dir:
        if dir:
            write(dir, int(step))
    print(json.dumps({"dir": dir, "rank": weft.rank()}))


def resume():
    """What this rank resumes from, and whose part it reads."""
    import weft

    s = weft.resume()
    if s:
        check(s)
    print(json.dumps({"step": s.step, "path": s.path("state.bin"), "ranks": s.ranks()} if s else None))


def who():
    import weft

    print(json.dumps([weft.rank(), weft.world_size()]))


def refuse():
    """What may not be saved, by what it is called; each must raise, and nothing may be published or left."""
    import weft

    def link(d):
        os.symlink("/etc/passwd", d + "/link")

    def pipe(d):
        os.mkfifo(d + "/pipe")

    def linkdir(d):
        os.symlink("/etc", d + "/etc")

    def empty(d):
        os.mkdir(d + "/only-a-directory")

    def record(d):
        open(d + "/part.json", "w").close()

    def newline(d):
        open(d + "/a\nb", "w").close()

    def bytes_name(d):
        open(os.fsencode(d) + b"/\xff", "w").close()

    def deep(d):
        os.makedirs(d + "/d" * 16)
        open(d + "/d" * 16 + "/f", "w").close()

    def many_files(d):
        for i in range(1001):
            open(d + "/%d" % i, "w").close()

    def many_dirs(d):
        open(d + "/f", "w").close()
        for i in range(1001):
            os.mkdir(d + "/%d" % i)

    def broken(d):
        open(d + "/f", "w").close()
        raise ValueError("the script's own")

    for step, bad in enumerate((link, pipe, linkdir, empty, record, newline, bytes_name, deep, many_files, many_dirs, broken)):
        try:
            with weft.save(step) as dir:
                bad(dir)
        except ValueError:
            pass
        else:
            raise AssertionError("%s was saved" % bad.__name__)
        assert os.listdir(weft.root()) == [".staging"] and os.listdir(weft.root() + "/.staging") == [], bad.__name__
    for arguments in ((-1,), (1.5,), (1 << 63,), (1, True, []), (1, True, [7]), (1, True, [-1])):
        try:
            with weft.save(*arguments):
                raise AssertionError("save%r began" % (arguments,))
        except ValueError:
            pass


def widest():
    """The largest part that weft.py lets pass: its reader must take it, too."""
    import weft

    with weft.save(1) as dir:
        os.makedirs(dir + "/d" * 15)
        for i in range(985):
            os.mkdir(dir + "/%d" % i)
        for i in range(999):
            open(dir + "/%d/f" % (i % 985) + "x" * (i // 985), "w").close()
        open(dir + "/d" * 15 + "/f", "w").close()


def twice():
    """A part that is there is never replaced, not even by the rank that wrote it; a lost answer is no error."""
    import weft

    real = weft._renameat2

    def lost(src, dst):
        real(src, dst)
        return errno.EIO

    weft._renameat2 = lost
    with weft.save(1) as dir:
        write(dir, 1)
    weft._renameat2 = real
    check(weft.resume())
    try:
        with weft.save(1) as dir:
            raise AssertionError("it began")
    except FileExistsError:
        pass
    for call in (real, lambda src, dst: None):
        weft._renameat2 = call
        part = weft._Part(1, True, [0])
        os.mkdir(part.staging)
        write(part.staging, 2)
        try:
            part.publish()
            raise AssertionError("a part was replaced")
        except OSError as e:
            assert e.errno in (errno.EEXIST, errno.ENOTEMPTY), e
        part.drop()
    check(weft.resume())


def durable():
    """A kill can't show what a power cut would lose, so this looks at what is synced, and when."""
    import weft

    synced, at_rename, changed = [], [], {}

    class Os:
        def __getattr__(self, name):
            return getattr(os, name)

        def fsync(self, fd):
            os.fsync(fd)
            synced.append(os.readlink("/proc/self/fd/%d" % fd))

        def mkdir(self, path):
            os.mkdir(path)
            changed[os.path.dirname(path)] = len(synced)

    real = weft._rename_new

    def rename(src, dst):
        for base, dirs, files in os.walk(src):
            for path in [base] + [os.path.join(base, f) for f in files]:
                assert path in synced, "%s is published and was never synced" % path
            for f in files:
                if f != weft.PART:
                    path = os.path.join(base, f)
                    assert synced.index(path) < synced.index(os.path.join(src, weft.PART)), "the record was there before %s" % path
                assert os.path.join(base, f) in synced[: len(synced) - synced[::-1].index(base)], "%s was synced before its files" % base
        real(src, dst)
        at_rename.append(len(synced))
        changed[os.path.dirname(dst)] = len(synced)

    weft.os, weft._rename_new = Os(), rename
    with weft.save(1) as dir:
        write(dir, 1)
    changed.pop(os.path.dirname(weft._Part(1, True, [0]).staging), None)  # what is in staging need not last under that name
    for dir, when in changed.items():
        assert dir in synced[when:], "a new name in %s was never synced" % dir
    assert at_rename and weft.root() in synced[: at_rename[0]], "the save's directory may be lost though its parts are not"


def torch_save():
    import torch
    import weft

    with weft.save(1) as dir:
        torch.save({"w": torch.arange(100000)}, dir + "/state.pt")
    assert torch.load(weft.resume().path("state.pt"))["w"].sum() == 4999950000


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

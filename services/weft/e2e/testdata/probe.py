"""A rank that an outside judge can trust: it holds a lock on each device that it was given, keeps its own count of starts,
saves, and on a restart reads back everything that it resumes from. What must never happen goes into JUDGE/wrong."""

import fcntl
import hashlib
import os
import sys
import time

import weft

judge = os.environ["JUDGE"]
job, attempt, rank, node = os.environ["WEFT_JOB"], weft.attempt(), weft.rank(), os.environ["WEFT_NODE"]


def note(file, text):
    fd = os.open(os.path.join(judge, file), os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    os.write(fd, f"{job} {attempt} {rank} {os.getpid()} {text}\n".encode())
    os.close(fd)


def content(step, r):
    return hashlib.sha256(f"{job} {step} {r}".encode()).hexdigest() * 64


note("starts", "start")

# One holder for each device, whoever believes what.
locks = []
for device in filter(None, os.environ["WEFT_DEVICES"].split(",")):
    fd = os.open(os.path.join(judge, f"device.{node}.{device.replace('/', '_')}"), os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        note("wrong", f"device {device} of {node} is held twice")
    locks.append(fd)
if not locks:
    note("wrong", "no device was given")

# One start of this rank in each attempt, and attempts only grow.
epoch = os.path.join(judge, f"epoch.{job}.{rank}")
fd = os.open(epoch, os.O_CREAT | os.O_RDWR, 0o644)
fcntl.flock(fd, fcntl.LOCK_EX)
before = int(os.read(fd, 32) or b"0")
if attempt <= before:
    note("wrong", f"attempt {attempt} starts after attempt {before} had")
os.lseek(fd, 0, os.SEEK_SET)
os.write(fd, str(attempt).encode())
os.close(fd)

first = 0
save = weft.resume()
if save:
    for r in range(weft.world_size()):
        if open(save.path("state", of=r)).read() != content(save.step, r):
            note("wrong", f"the save of step {save.step} is not whole: rank {r}")
    first = save.step + 1

last = int(sys.argv[1])
for step in range(first, last):
    time.sleep(0.1)
    if step % 10 == 9:
        with weft.save(step, full=True) as dir:
            with open(os.path.join(dir, "state"), "w") as f:
                f.write(content(step, rank))
    if weft.stopping():
        sys.exit(0 if step == last - 1 else 75)
note("ends", "end")

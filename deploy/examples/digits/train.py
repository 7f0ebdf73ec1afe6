"""Handwritten digits by PyTorch DDP, with checkpoints by weft.py: the smallest real job that can be killed and comes back.

Runs under Weft (see job.yaml), under torchrun, or alone: python3 train.py. Lines that begin with WEFT_EVENT carry JSON for
programs; everything else is for people.
"""

import argparse
import csv
import gzip
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
import weft
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HERE = os.path.dirname(os.path.abspath(__file__))


def load():
    """1,797 images of 8 x 8 pixels from 0 to 16, and their digits; every sixth is kept for the test."""
    with gzip.open(os.path.join(HERE, "digits.csv.gz"), "rt") as f:
        rows = [[float(v) for v in row] for row in csv.reader(f)]
    data = torch.tensor(rows)
    x, y = data[:, :64] / 16, data[:, 64].long()
    test = torch.arange(len(y)) % 6 == 0
    return x[~test], y[~test], x[test], y[test]


def event(kind, **fields):
    print("WEFT_EVENT " + json.dumps(dict(event=kind, rank=weft.rank(), attempt=weft.attempt(), **fields), sort_keys=True), flush=True)


def digest(optimizer):
    """Hash of the optimizer's whole state, tensor by tensor, so that a restore can be proved exact."""
    h = hashlib.sha256()
    state = optimizer.state_dict()
    for key in sorted(state["state"]):
        for name, value in sorted(state["state"][key].items()):
            h.update(("%s %s " % (key, name)).encode())
            h.update(value.numpy().tobytes() if torch.is_tensor(value) else repr(value).encode())
    h.update(json.dumps(state["param_groups"], sort_keys=True, default=repr).encode())
    return h.hexdigest()


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--steps", type=int, default=400, help="training steps")
    args.add_argument("--save-every", type=int, default=40, help="steps between saves")
    args.add_argument("--step-delay", type=float, default=0.0, help="seconds to wait after each step, to watch it longer")
    args = args.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(7)
    if "MASTER_ADDR" not in os.environ:  # alone
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    weft.stopping()
    event("started", pid=os.getpid(), steps=args.steps)
    dist.init_process_group("gloo")

    x, y, test_x, test_y = load()
    probe_x, probe_y = x[:256], y[:256]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.003)

    def probe():
        with torch.no_grad():
            return loss_of(net(probe_x), probe_y).item()

    start = 0
    saved = weft.resume()
    if saved:
        state = torch.load(saved.path("state.pt"))
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"] + 1
        event("restored", save=saved.name, save_step=saved.step, next_step=start, loss=probe(), stored_loss=state["loss"],
              optimizer=digest(optimizer), stored_optimizer=state["optimizer_digest"])

    ddp = DistributedDataParallel(net)
    ranks, me = dist.get_world_size(), dist.get_rank()
    stop = torch.zeros(1)
    for step in range(start, args.steps):
        # Each step draws the same batch on every rank from its number alone, and each rank takes its share: so a restart
        # goes on with exactly the batches that were still to come.
        batch = torch.randperm(len(y), generator=torch.Generator().manual_seed(step))[: 32 * ranks][me::ranks]
        optimizer.zero_grad()
        loss = loss_of(ddp(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
        weft.beat(step, loss=loss.item())
        # Ranks get SIGTERM at different instants; they agree on the step at which they stop.
        stop[0] = float(weft.stopping())
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if (step + 1) % args.save_every == 0 or stop.item():
            with weft.save(step, full=True, ranks=[0]) as dir:
                if dir:
                    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "loss": probe(),
                                "optimizer_digest": digest(optimizer)}, os.path.join(dir, "state.pt"))
            if me == 0:
                event("saved", step=step)
        if me == 0 and (step % 10 == 9 or step == start):
            event("step", step=step, steps=args.steps, loss=loss.item())
        if stop.item():
            event("stopped", step=step)
            return
        time.sleep(args.step_delay)

    if me == 0:
        with torch.no_grad():
            accuracy = (net(test_x).argmax(1) == test_y).float().mean().item()
        event("done", accuracy=accuracy, test_samples=len(test_y), step=args.steps - 1)
        print("test accuracy %.1f %% on %d samples" % (100 * accuracy, len(test_y)), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()

package e2e

import (
	"strings"
	"testing"
)

// A crash of the whole control plane must not touch running ranks.
func TestCrashLeavesRanksRunningAndTheyAreAdopted(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	f.phase(id, "running")
	f.crash()
	for r, pid := range pids {
		if !alive(pid) {
			t.Fatalf("rank %d died with the fabric", r)
		}
	}
	f.up()
	f.phase(id, "running")
	for r, pid := range pids {
		if !alive(pid) {
			t.Errorf("rank %d died when the fabric came back", r)
		}
	}
	if got := f.job(id).Status; got.Attempt != 1 || got.Restarts != 0 {
		t.Errorf("something was restarted: %+v", got)
	}
	for r := range pids {
		finish(t, dir, r, 0)
	}
	if j := f.phase(id, "succeeded", "failed"); j.Status.Phase != "succeeded" || j.Status.Attempt != 1 {
		t.Errorf("adopted ranks ended with 0: %+v", j.Status)
	}
}

// A rank that exits while nobody watches is known afterwards, with its exit code.
func TestExitDuringAnOutageIsKnown(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	f.phase(id, "running")
	f.crash()
	finish(t, dir, 3, 42)
	f.eventually("rank 3 is gone", func() error {
		if alive(pids[3]) {
			return errAlive
		}
		return nil
	})
	f.up()
	j := f.phase(id, "failed")
	if j.Status.Cause.Kind != "CAUSE_KIND_EXIT" || j.Status.Cause.Rank != 3 || j.Status.Cause.ExitCode != 42 {
		t.Errorf("rank 3 exited 42 during the outage: %+v", j.Status)
	}
	for r, pid := range pids {
		if alive(pid) {
			t.Errorf("rank %d lives after its job failed", r)
		}
	}
}

// A whole gang that ends well during an outage has succeeded.
func TestSuccessDuringAnOutageIsKnown(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	f.phase(id, "running")
	f.crash()
	for r := range pids {
		finish(t, dir, r, 0)
	}
	for _, pid := range pids {
		f.eventually("the rank is gone", func() error {
			if alive(pid) {
				return errAlive
			}
			return nil
		})
	}
	f.up()
	if j := f.phase(id, "succeeded", "failed"); j.Status.Phase != "succeeded" || j.Status.Attempt != 1 {
		t.Errorf("%+v", j.Status)
	}
}

// Ctrl-C puts running jobs back, uncharged, and the next start resumes them.
func TestInterruptRequeuesUncharged(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	f.phase(id, "running")
	f.interrupt()
	for r, pid := range pids {
		if alive(pid) {
			t.Errorf("rank %d lives after Ctrl-C", r)
		}
	}
	f.up()
	f.pids(dir, 2)
	j := f.phase(id, "running")
	if j.Status.Attempt != 2 || j.Status.Restarts != 0 {
		t.Errorf("after Ctrl-C and a new start: %+v", j.Status)
	}
}

// Crashing again and again neither loses nor doubles anything.
func TestCrashesInARow(t *testing.T) {
	f := newFabric(t)
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	var ids []string
	for range 3 {
		ids = append(ids, strings.TrimSpace(f.must("", "run", "-d", "--", "true")))
		f.crash()
		f.up()
	}
	for _, other := range ids {
		f.phase(other, "succeeded")
	}
	if j := f.phase(id, "running"); j.Status.Attempt != 1 {
		t.Errorf("the gang was restarted: %+v", j.Status)
	}
	for r, pid := range pids {
		if !alive(pid) {
			t.Errorf("rank %d died", r)
		}
	}
}

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An operator puts an older copy of the ledger's disk back: the fabric says so in one line, what was lost is shown and
// accepted, and it goes on. What ran and is still known runs on; what ran and is known no more is ended before it starts
// again.
func TestAnOlderLedgerIsAdopted(t *testing.T) {
	f := newFabric(t, "--simulate", "6")
	known := t.TempDir()
	a := f.gang(known, 0)
	pidsA := f.pids(known, 1)
	f.phase(a, "running")
	f.crash()
	stream := filepath.Join(f.data(), "bus", "jetstream", "CORE", "streams", "LEDGER")
	image := filepath.Join(t.TempDir(), "image")
	if err := os.CopyFS(image, os.DirFS(stream)); err != nil {
		t.Fatal(err)
	}

	f.up()
	lost, ended := t.TempDir(), t.TempDir()
	b := f.gang(lost, 0)
	pidsB := f.pids(lost, 1)
	c := f.gang(ended, 0)
	f.pids(ended, 1)
	for r := range 4 {
		finish(t, ended, r, 0)
	}
	f.phase(b, "running")
	f.phase(c, "succeeded")
	if r := f.weft("", "ledger", "verify", "--data", f.data()); r.code != 0 || strings.Count(r.stdout, "is whole") != 2 {
		t.Errorf("verify beside a running fabric: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	f.crash()
	if err := os.RemoveAll(stream); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(stream, os.DirFS(image)); err != nil {
		t.Fatal(err)
	}

	if err := os.Truncate(f.log, 0); err != nil {
		t.Fatal(err)
	}
	f.start()
	f.ends()
	said, err := os.ReadFile(f.log)
	if err != nil {
		t.Fatal(err)
	}
	last := lastLine(string(said))
	if f.proc.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "weft: ") || !strings.Contains(last, "weft ledger adopt --data "+f.data()) {
		t.Fatalf("weft up on a ledger that lost its end: exit %d\n%s", f.proc.ProcessState.ExitCode(), said)
	}

	at := []string{"ledger", "adopt", "--data", f.data()}
	if r := f.weft("", "ledger", "verify", "--data", f.data()); r.code != 1 || !strings.Contains(r.stdout, "weft ledger adopt") {
		t.Errorf("verify: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	r := f.weft("", at...)
	if r.code != 2 || !strings.Contains(r.stdout, "records are lost") || !strings.Contains(r.stdout, b) || !strings.Contains(r.stderr, "--yes") {
		t.Fatalf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := f.weft("", at...); r.code != 2 {
		t.Fatalf("only looking has changed something: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	f.must("", append(at, "--yes")...)
	f.must("", "ledger", "verify", "--data", f.data())
	if out := f.must("", at...); !strings.Contains(out, "LEDGER: nothing is lost") {
		t.Errorf("adopted twice: %s", out)
	}

	f.up()
	f.eventually("the ranks that the ledger does not know are ended", func() error {
		for _, pid := range pidsB {
			if alive(pid) {
				return errAlive
			}
		}
		return nil
	})
	f.eventually("b runs again", func() error {
		r := f.weft("", "get", b, "-o", "json")
		var j job
		if err := json.Unmarshal([]byte(r.stdout), &j); err != nil || j.Status.Phase != "running" {
			return fmt.Errorf("it is %q: %s", j.Status.Phase, r.stderr)
		}
		return nil
	})
	if f.pids(lost, 1) == pidsB {
		t.Error("b runs, but nothing new was started")
	}
	for _, pid := range pidsA {
		if !alive(pid) {
			t.Error("a rank of a job that the ledger knows was ended")
		}
	}
	if got := f.phase(a, "running").Status; got.Attempt != 1 || got.Restarts != 0 {
		t.Errorf("a: %+v", got)
	}
	for _, dir := range []string{known, lost} {
		for r := range 4 {
			finish(t, dir, r, 0)
		}
	}
	f.phase(a, "succeeded")
	f.phase(b, "succeeded")
	f.must("", "ledger", "verify", "--data", f.data())
}

// A cell goes on elsewhere from a backup that was taken while it ran.
func TestBackupAndRestore(t *testing.T) {
	f := newFabric(t, "--simulate", "6")
	ended, running := t.TempDir(), t.TempDir()
	a, b := f.gang(ended, 0), f.gang(running, 0)
	f.pids(ended, 1)
	f.pids(running, 1)
	for r := range 4 {
		finish(t, ended, r, 0)
	}
	f.phase(a, "succeeded")
	f.phase(b, "running")
	file := filepath.Join(t.TempDir(), "cell.tar.gz")
	f.must("", "ledger", "snapshot", "--data", f.data())
	f.must("", "ledger", "backup", file, "--data", f.data())
	if r := f.weft("", "ledger", "restore", file, "--data", f.data()); r.code != 2 || !strings.Contains(r.stderr, "--data DIR") {
		t.Errorf("into a running fabric: exit %d: %s", r.code, r.stderr)
	}
	for r := range 4 {
		finish(t, running, r, 0)
	}
	f.phase(b, "succeeded")
	f.interrupt()
	if r := f.weft("", "ledger", "restore", file, "--data", f.data()); r.code != 2 || !strings.Contains(r.stderr, "holds records already") {
		t.Errorf("over a fabric: exit %d: %s", r.code, r.stderr)
	}

	g := idleFabric(t, "--simulate", "6")
	if err := os.Remove(filepath.Join(running, "end.0")); err != nil { // so that b, which starts again, can be seen
		t.Fatal(err)
	}
	g.must("", "ledger", "restore", file, "--data", g.data())
	g.must("", "ledger", "verify", "--data", g.data())
	g.up()
	g.phase(a, "succeeded")
	g.phase(b, "running")
	finish(t, running, 0, 0)
	if got := g.phase(b, "succeeded"); got.Status.Attempt != 2 {
		t.Errorf("b succeeded in attempt %d; its first one ended with its machine", got.Status.Attempt)
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A full disk ends the fabric with a word about it, instead of leaving one up that takes nothing; with room again
// everything that was answered is there, and what ran has run on.
func TestAFullDiskEndsTheFabricAndLosesNothing(t *testing.T) {
	f := idleFabric(t)
	f.log = filepath.Join(t.TempDir(), "fabric.log")
	if err := syscall.Mount("none", f.dir, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("no file system of its own to fill: %v", err)
	}
	t.Cleanup(func() {
		f.interrupt()
		if err := syscall.Unmount(f.dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f.up()
	running := strings.TrimSpace(f.must("", "run", "--detach", "--", "sleep", "600"))
	f.eventually("it runs", func() error {
		if !strings.Contains(f.must("", "ps", "--phase", "running"), running) {
			return errors.New("not yet")
		}
		return nil
	})

	fill := filepath.Join(f.dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 48<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	_ = f.weft("", "run", "--detach", "--", "true") // may be answered or not, but writes
	f.ends()
	log, err := os.ReadFile(f.log)
	if err != nil || !strings.Contains(string(log), "the bus cannot write") || !strings.Contains(string(log), "no space left on device") {
		t.Errorf("%v:\n%s", err, log)
	}
	if code := f.proc.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit %d", code)
	}

	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	f.up()
	if out := f.must("", "ps", "--phase", "running"); !strings.Contains(out, running) {
		t.Errorf("%s does not run on:\n%s", running, out)
	}
	if r := f.weft("", "run", "--", "echo", "again"); r.code != 0 || r.stdout != "again\n" {
		t.Errorf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
}

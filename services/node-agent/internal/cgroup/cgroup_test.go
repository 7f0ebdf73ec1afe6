package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

func TestFindTheMount(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"unified": {"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup"},
		"hybrid": {"31 23 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n32 31 0:28 / /sys/fs/cgroup/unified rw shared:10 master:3 - cgroup2 cgroup2 rw\n" +
			"33 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "/sys/fs/cgroup/unified"},
		"v1 only": {"33 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", ""},
	} {
		f := filepath.Join(dir, "mountinfo")
		if err := os.WriteFile(f, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := mounted(f)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, c.want)
		}
	}
	f := filepath.Join(dir, "cgroup")
	if err := os.WriteFile(f, []byte("9:name=systemd:/x\n0::/user.slice/a.scope\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := ownPath(f); p != "/user.slice/a.scope" || err != nil {
		t.Fatalf("got %q, %v", p, err)
	}
}

func TestWithoutAPlaceItSaysWhyAndTheCure(t *testing.T) {
	for _, m := range []*Manager{Open(None, "weft-test"), Open("/proc/nowhere", "weft-test")} {
		c := m.Condition()
		if m.Works() || c.GetStatus() != weftv1.ConditionStatus_CONDITION_STATUS_DEGRADED || c.GetMessage() == "" || c.GetCure() == "" {
			t.Errorf("got %v", c)
		}
	}
}

// managers are the two ways; the first needs a machine that allows it.
func managers(t *testing.T) map[string]*Manager {
	t.Helper()
	ms := map[string]*Manager{"environment": Open(None, "")}
	name := fmt.Sprintf("weft-test-%d", os.Getpid())
	if m := Open("", name); m.Works() {
		ms["cgroup"] = m
		t.Cleanup(func() {
			if err := removeTree(m.base); err != nil {
				t.Error(err)
			}
		})
	} else {
		t.Logf("cgroup v2 is not tested here: %s", m.why)
	}
	return ms
}

func TestNothingSurvivesKill(t *testing.T) {
	for way, m := range managers(t) {
		t.Run(way, func(t *testing.T) {
			g := m.Group("job-1", "WEFT_RUN="+t.TempDir())
			if err := g.Create(); err != nil {
				t.Fatal(err)
			}
			leaf, err := g.Open()
			if err != nil {
				t.Fatal(err)
			}
			// A child in its own session whose parent has gone, and one that is frozen.
			c := exec.Command("sh", "-c", "(setsid sleep 60 &) ; kill -STOP $$; sleep 60")
			c.Env = append(os.Environ(), g.Marker)
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			if leaf != nil {
				defer leaf.Close()
				c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(leaf.Fd())
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			reaped := false
			t.Cleanup(func() {
				if !reaped {
					_ = c.Process.Kill()
				}
			})
			wait(t, "two processes, one orphaned", func() bool {
				ids, err := proc.WithEnv(g.Marker)
				n := 0
				for _, id := range ids {
					if id.Comm() == "sleep" {
						n++
					}
				}
				return err == nil && len(ids) == 2 && n == 1
			})
			if ok, err := g.Empty(); ok || err != nil {
				t.Fatalf("empty with two processes: %v %v", ok, err)
			}
			if err := g.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			reaped = true
			wait(t, "an empty group", func() bool { ok, err := g.Empty(); return ok && err == nil })
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
			if ok, err := g.Empty(); !ok || err != nil {
				t.Fatalf("a removed group is not empty: %v %v", ok, err)
			}
		})
	}
}

func TestSweepRemovesWhatNobodyKnows(t *testing.T) {
	m, ok := managers(t)["cgroup"]
	if !ok {
		t.Skip("no cgroup v2 here")
	}
	known, lost := m.Group("known", "WEFT_RUN=k"), m.Group("lost", "WEFT_RUN=l")
	for _, g := range []Group{known, lost} {
		if err := g.Create(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Sweep(func(name string) bool { return name == "known" }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lost.Path); !os.IsNotExist(err) {
		t.Fatalf("the unknown group is still there: %v", err)
	}
	if _, err := os.Stat(known.Path); err != nil {
		t.Fatal(err)
	}
}

func wait(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

package proc

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func start(t *testing.T, env []string, name string, args ...string) (*exec.Cmd, ID) {
	t.Helper()
	c := exec.Command(name, args...)
	c.Env = append(os.Environ(), env...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	id, err := Of(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return c, id
}

func TestParseStatOfANastyName(t *testing.T) {
	s, err := parseStat([]byte("42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1\n"))
	if err != nil || s.comm != "a) b (c)" || s.ppid != 7 || s.start != 987654 || s.state != 'S' {
		t.Fatalf("got %+v, %v", s, err)
	}
	if _, err := parseStat([]byte("42 no parentheses")); err == nil {
		t.Fatal("nonsense was accepted")
	}
}

func TestAPidAloneIsNoName(t *testing.T) {
	_, id := start(t, nil, "sleep", "60")
	if !id.Alive() {
		t.Fatal("a running process is not alive")
	}
	other := ID{id.Pid, id.Start + 1}
	if other.Alive() || !errors.Is(other.Signal(unix.SIGKILL), ErrGone) {
		t.Fatal("another start time passed for the same process")
	}
	if !id.Alive() {
		t.Fatal("the wrong process was signalled")
	}
}

func TestWatchEnds(t *testing.T) {
	_, id := start(t, nil, "sleep", "60")
	ended := make(chan struct{})
	Watch(id, func() { close(ended) })
	select {
	case <-ended:
		t.Fatal("ended before the process did")
	default:
	}
	if err := id.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the end was not seen")
	}
	if id.Alive() {
		t.Fatal("a zombie counts as alive")
	}
}

func TestFindByEnvironmentAndDescent(t *testing.T) {
	c, id := start(t, []string{"WEFT_RUN=proc-test-" + t.TempDir()}, "sh", "-c", "setsid sleep 61 & sleep 60; true")
	entry := c.Env[len(c.Env)-1]
	deadline := time.Now().Add(5 * time.Second)
	for {
		found, err := WithEnv(entry)
		if err != nil {
			t.Fatal(err)
		}
		below, err := Descendants(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 3 && len(below) >= 3 {
			for _, f := range found {
				_ = f.Signal(unix.SIGKILL)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("found %v by environment and %v by descent from %v", found, below, id)
		}
		time.Sleep(time.Millisecond)
	}
}

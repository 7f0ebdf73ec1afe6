// Package e2e drives whole fabrics from outside: the built binary, real processes, real kills. It knows nothing but
// the command line and what the operating system shows.
package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the weft command under test, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weft-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "weft")
	// The tag lets a test name the instant of a crash; without that the binary is the one that users have.
	if out, err := exec.Command("go", "build", "-tags", "chaos", "-o", binary, "../cmd/weft").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// patience bounds every wait; a healthy machine needs a fraction of it.
const patience = 60 * time.Second

// fabric is one `weft up` with its data directory.
type fabric struct {
	t    *testing.T
	dir  string
	log  string
	proc *exec.Cmd
	done chan struct{}
	args []string
}

func newFabric(t *testing.T, args ...string) *fabric {
	t.Helper()
	f := idleFabric(t, args...)
	f.up()
	return f
}

// idleFabric is one that is not started yet.
func idleFabric(t *testing.T, args ...string) *fabric {
	t.Helper()
	f := &fabric{t: t, dir: t.TempDir(), args: args, done: make(chan struct{})}
	close(f.done)
	f.log = filepath.Join(f.dir, "fabric.log")
	t.Cleanup(func() {
		if f.running() {
			f.interrupt()
		}
		if t.Failed() {
			b, _ := os.ReadFile(f.log)
			if len(b) > 12000 {
				b = b[len(b)-12000:]
			}
			t.Logf("fabric's log:\n%s", b)
		}
	})
	return f
}

func (f *fabric) data() string { return filepath.Join(f.dir, "data") }

func (f *fabric) contextFile() string { return filepath.Join(f.data(), "context.json") }

// up starts the fabric and waits until it is ready.
func (f *fabric) up() {
	f.t.Helper()
	f.start()
	f.eventually("the fabric is ready", func() error {
		if !f.running() {
			b, _ := os.ReadFile(f.log)
			f.t.Fatalf("weft up ended:\n%s", b)
		}
		_, err := os.Stat(f.contextFile())
		return err
	})
}

func (f *fabric) start(env ...string) {
	f.t.Helper()
	_ = os.Remove(f.contextFile())
	log, err := os.OpenFile(f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	args := append([]string{"up", "-v", "--data", f.data(), "--simulate", "2", "--grpc", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--nats", "127.0.0.1:0"}, f.args...)
	f.proc = exec.Command(binary, args...)
	f.proc.Env = append(os.Environ(), env...)
	f.proc.Stdout, f.proc.Stderr = log, log
	// A group of its own, so that only the fabric gets the signals, as from a terminal's job control.
	f.proc.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := f.proc.Start(); err != nil {
		f.t.Fatal(err)
	}
	done := make(chan struct{})
	f.done = done
	proc := f.proc
	go func() { _ = proc.Wait(); close(done) }()
}

func (f *fabric) running() bool {
	select {
	case <-f.done:
		return false
	default:
		return true
	}
}

// ends waits until the fabric has ended by itself.
func (f *fabric) ends() {
	f.t.Helper()
	select {
	case <-f.done:
	case <-time.After(patience):
		f.crash()
		f.t.Fatalf("the fabric runs on after %v, and should have ended", patience)
	}
}

// crash kills the fabric as a power cut of the control plane would.
func (f *fabric) crash() {
	f.t.Helper()
	_ = f.proc.Process.Kill()
	<-f.done
}

// interrupt is Ctrl-C; it waits for the orderly end.
func (f *fabric) interrupt() {
	f.t.Helper()
	_ = f.proc.Process.Signal(os.Interrupt)
	select {
	case <-f.done:
	case <-time.After(patience):
		_ = f.proc.Process.Kill()
		f.t.Errorf("the fabric did not end within %v of Ctrl-C", patience)
	}
}

type result struct {
	stdout, stderr string
	code           int
}

// weft runs one command; stdin may be empty.
func (f *fabric) weft(stdin string, args ...string) result {
	f.t.Helper()
	return f.weftEnv(nil, stdin, args...)
}

func (f *fabric) weftEnv(env []string, stdin string, args ...string) result {
	f.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = append(append(os.Environ(), "WEFT_CONTEXT="+f.contextFile()), env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var ee *exec.ExitError
	if err != nil && !errors.As(err, &ee) {
		f.t.Fatal(err)
	}
	return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// must runs a command that has to succeed, and returns its output.
func (f *fabric) must(stdin string, args ...string) string {
	f.t.Helper()
	r := f.weft(stdin, args...)
	if r.code != 0 {
		f.t.Fatalf("weft %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// job is what get -o json shows, as far as the tests read it.
type job struct {
	Status struct {
		Phase    string `json:"phase"`
		Reason   string `json:"reason"`
		Attempt  int    `json:"attempt"`
		Restarts int    `json:"restarts"`
		Cause    struct {
			Kind     string `json:"kind"`
			Rank     int    `json:"rank"`
			ExitCode int    `json:"exit_code"`
			Signal   int    `json:"signal"`
		} `json:"cause"`
		ResumeFrom struct {
			Save string `json:"save"`
			Step string `json:"step"`
		} `json:"resume_from"`
	} `json:"status"`
}

func (f *fabric) job(id string) job {
	f.t.Helper()
	var j job
	if err := json.Unmarshal([]byte(f.must("", "get", id, "-o", "json")), &j); err != nil {
		f.t.Fatal(err)
	}
	return j
}

// phase waits until the job is in one of the phases.
func (f *fabric) phase(id string, want ...string) job {
	f.t.Helper()
	var j job
	f.eventually(fmt.Sprintf("job %s is %s", id, strings.Join(want, " or ")), func() error {
		j = f.job(id)
		for _, w := range want {
			if j.Status.Phase == w {
				return nil
			}
		}
		return fmt.Errorf("it is %s (%s)", j.Status.Phase, j.Status.Reason)
	})
	return j
}

func (f *fabric) eventually(what string, check func() error) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		<-tick.C
	}
}

// gang submits a job of four ranks that write their pid and start count into dir, and then wait for dir/end.<rank>,
// whose content is their exit code.
func (f *fabric) gang(dir string, restarts int) string {
	f.t.Helper()
	const script = `echo $$ > "$DIR/pid.$WEFT_RANK.$WEFT_ATTEMPT.tmp"; mv "$DIR/pid.$WEFT_RANK.$WEFT_ATTEMPT.tmp" "$DIR/pid.$WEFT_RANK.$WEFT_ATTEMPT"
while [ ! -e "$DIR/end.$WEFT_RANK" ]; do sleep 0.05; done; exit $(cat "$DIR/end.$WEFT_RANK")`
	m := map[string]any{
		"apiVersion": "weft/v1", "kind": "Job",
		"metadata": map[string]any{"name": "gang-" + strconv.Itoa(int(time.Now().UnixNano()%1e6)), "queue": "demo"},
		"spec": map[string]any{
			"workers": 4, "gpus": 4, "command": []string{"sh", "-c", script}, "env": map[string]string{"DIR": dir},
			"restart": map[string]any{"max": restarts, "backoff": "10ms"}, "checkpoint": map[string]any{"grace": "5s"},
		},
	}
	b, err := json.Marshal(m)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(f.must(string(b), "submit", "-"))
}

// pids waits until every rank of an attempt has written its pid.
func (f *fabric) pids(dir string, attempt int) [4]int {
	f.t.Helper()
	var pids [4]int
	for r := range pids {
		file := filepath.Join(dir, fmt.Sprintf("pid.%d.%d", r, attempt))
		f.eventually("rank "+strconv.Itoa(r)+" runs", func() error {
			b, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			pids[r], err = strconv.Atoi(strings.TrimSpace(string(b)))
			return err
		})
	}
	return pids
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func finish(t *testing.T, dir string, rank, code int) {
	t.Helper()
	tmp := filepath.Join(dir, fmt.Sprintf("end.%d.tmp", rank))
	if err := os.WriteFile(tmp, []byte(strconv.Itoa(code)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, fmt.Sprintf("end.%d", rank))); err != nil {
		t.Fatal(err)
	}
}

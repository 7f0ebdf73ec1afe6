package e2e

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// services is where the binaries of the services lie, built at the first use.
var services = sync.OnceValues(func() (string, error) {
	dir := filepath.Dir(binary)
	args := []string{"build", "-o", dir + "/"}
	for _, s := range []string{"scheduler", "allocator", "checkpoint", "telemetry", "gateway", "node-agent"} {
		args = append(args, "../../"+s+"/cmd/...")
	}
	out, err := exec.Command("go", args...).CombinedOutput()
	if err != nil {
		return string(out), err
	}
	return dir, nil
})

// process is one service of a fabric of separate processes.
type process struct {
	f    *fabric
	name string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	said chan string // first line of its standard output
}

func (p *process) start() {
	p.f.t.Helper()
	log, err := os.OpenFile(p.f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.f.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(filepath.Join(filepath.Dir(binary), p.name), p.args...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		p.f.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		p.f.t.Fatal(err)
	}
	cmd, done, said := p.cmd, make(chan struct{}), make(chan string, 1)
	p.done, p.said = done, said
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case said <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait()
		close(done)
	}()
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// end asks for an orderly end, which has exit code 0.
func (p *process) end() {
	p.f.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		p.f.t.Fatalf("%s did not end within %v of SIGTERM", p.name, patience)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.f.t.Errorf("%s ended with exit code %d after SIGTERM", p.name, code)
	}
}

// startApart starts a bus and every service as a process of its own.
func startApart(t *testing.T) (*fabric, map[string]*process) {
	t.Helper()
	if said, err := services(); err != nil {
		t.Fatalf("build: %v\n%s", err, said)
	}
	f := &fabric{t: t, dir: t.TempDir()}
	f.log = filepath.Join(f.dir, "fabric.log")
	all := map[string]*process{}
	add := func(name string, args ...string) *process {
		p := &process{f: f, name: name, args: args}
		all[name] = p
		p.start()
		t.Cleanup(p.end)
		return p
	}
	t.Cleanup(func() {
		if b, _ := os.ReadFile(f.log); t.Failed() {
			t.Logf("the fabric's log:\n%s", b[max(0, len(b)-12000):])
		}
	})
	b := add("weft", "bus", "serve", "--data", f.data(), "--listen", "127.0.0.1:0", "--node", "dev-0")
	var url string
	select {
	case line := <-b.said:
		url = strings.TrimSuffix(strings.Fields(line)[2], ";")
	case <-b.done:
		t.Fatal("the bus ended")
	}
	b.args[5] = strings.TrimPrefix(url, "nats://") // started again it is at the same address
	shared := func(more ...string) []string { return append([]string{"--nats", url, "--data", f.data()}, more...) }
	saves := filepath.Join(f.data(), "saves")
	if err := os.MkdirAll(saves, 0o755); err != nil {
		t.Fatal(err)
	}
	add("weft-scheduler", shared()...)
	add("weft-allocator", shared()...)
	add("weft-checkpoint", shared("--saves-dir", saves)...)
	add("weft-telemetry", shared("--metrics", "127.0.0.1:0")...)
	add("weft-agent", shared("--node", "dev-0", "--simulate", "a100-80gx16", "--saves-dir", saves, "--saves-shared", "--port-base", "24000", "--port-count", "500")...)
	add("weft-gateway", shared("--grpc", "127.0.0.1:0", "--rest", "127.0.0.1:0")...)
	f.door()
	f.eventually("queues are applied", func() error {
		return exitZero(f.weft("queues: [{name: default}, {name: demo}]\n", "queues", "apply", "-"))
	})
	return f, all
}

// door waits until the gateway has said where it is.
func (f *fabric) door() {
	f.t.Helper()
	f.eventually("the door is open", func() error {
		_, err := os.Stat(filepath.Join(f.data(), "context.json"))
		return err
	})
}

type exitCode result

func (e *exitCode) Error() string { return e.stdout + e.stderr }

func exitZero(r result) error {
	if r.code != 0 {
		return (*exitCode)(&r)
	}
	return nil
}

// A fabric of separate processes does its work, and goes on with it after any of them was killed and started again.
func TestSeparateServicesSurviveTheKillOfEach(t *testing.T) {
	f, all := startApart(t)
	if r := f.weft("", "run", "--", "echo", "hi"); r.code != 0 || r.stdout != "hi\n" {
		t.Fatalf("exit %d, output %q, errors %q", r.code, r.stdout, r.stderr)
	}
	dir := t.TempDir()
	id := f.gang(dir, 0)
	pids := f.pids(dir, 1)
	f.phase(id, "running")
	for _, name := range []string{"weft-scheduler", "weft-allocator", "weft-checkpoint", "weft-telemetry", "weft-agent", "weft-gateway", "weft"} {
		p := all[name]
		p.kill()
		if name == "weft-gateway" {
			_ = os.Remove(filepath.Join(f.data(), "context.json"))
		}
		p.start()
		f.door()
		var out string
		f.eventually("a job runs after the kill of "+name, func() error {
			r := f.weft("", "run", "--", "echo", "after", name)
			out = r.stdout
			return exitZero(r)
		})
		if out != "after "+name+"\n" {
			t.Errorf("after the kill of %s: %q", name, out)
		}
		for r, pid := range pids {
			if !alive(pid) {
				t.Fatalf("rank %d did not survive the kill of %s", r, name)
			}
		}
	}
	// What happens while nobody leads is known afterwards.
	s := all["weft-scheduler"]
	s.kill()
	for r, pid := range pids {
		finish(t, dir, r, 0)
		f.eventually("the rank is gone", func() error {
			if alive(pid) {
				return errAlive
			}
			return nil
		})
	}
	s.start()
	if j := f.phase(id, "succeeded", "failed"); j.Status.Phase != "succeeded" || j.Status.Attempt != 1 || j.Status.Restarts != 0 {
		t.Errorf("the gang ended with 0 while the scheduler was away: %+v", j.Status)
	}
}

// Each binary teaches, and says in one line what is wrong.
func TestSeparateServicesTeach(t *testing.T) {
	if said, err := services(); err != nil {
		t.Fatalf("build: %v\n%s", err, said)
	}
	for _, name := range []string{"weft-scheduler", "weft-allocator", "weft-checkpoint", "weft-telemetry", "weft-agent", "weft-gateway"} {
		run := func(args ...string) result {
			cmd := exec.Command(filepath.Join(filepath.Dir(binary), name), args...)
			var out, errOut strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errOut
			_ = cmd.Run()
			return result{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
		}
		if r := run("--help"); r.code != 0 || !strings.Contains(r.stdout, name+" --nats") || !strings.Contains(r.stdout, "Settings:") {
			t.Errorf("%s --help: exit %d\n%s%s", name, r.code, r.stdout, r.stderr)
		}
		for want, args := range map[string][]string{
			name + " --help": {"--fly"},
			"weft bus serve": {"--data", filepath.Join(t.TempDir(), "none")},
		} {
			if r := run(args...); r.code != 2 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, want) {
				t.Errorf("%s %v: exit %d, want one line with %q: %s", name, args, r.code, want, r.stderr)
			}
		}
	}
}

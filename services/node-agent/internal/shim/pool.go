package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
)

// spareArg instead of a run directory makes a shim wait until one is named on its standard input; if its agent dies, it
// ends.
const spareArg = "-"

// Pool starts shims. It keeps one started ahead of need, since starting a large binary is most of the time between an
// assignment and its ranks running.
type Pool struct {
	exe  string
	leaf func() (*os.File, error) // cgroup to start shims in; nil file = none

	mu    sync.Mutex
	spare *spare
}

type spare struct {
	id   proc.ID
	line *os.File
}

// NewPool makes a pool of shims that are exe, this binary.
func NewPool(exe string, leaf func() (*os.File, error)) *Pool { return &Pool{exe: exe, leaf: leaf} }

// Fill starts a shim ahead, if there is none.
func (p *Pool) Fill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spare != nil && p.spare.id.Alive() {
		return nil
	}
	p.drop()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("spare shim: %w", err)
	}
	defer func() { _ = r.Close() }()
	id, err := p.exec(r, nil, spareArg)
	if err != nil {
		_ = w.Close()
		return err
	}
	p.spare = &spare{id, w}
	return nil
}

// Full says whether a shim waits.
func (p *Pool) Full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spare != nil
}

// Close lets the waiting shim end.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

func (p *Pool) drop() {
	if p.spare != nil {
		_ = p.spare.line.Close()
		p.spare = nil
	}
}

// Start gives a run directory, which has its launch.json, to a shim.
func (p *Pool) Start(dir string, l *Launch) (proc.ID, error) {
	p.mu.Lock()
	s := p.spare
	p.spare = nil
	p.mu.Unlock()
	if s != nil {
		_, err := fmt.Fprintf(s.line, "%s\n%s\n", dir, l.Token)
		_ = s.line.Close()
		if err == nil && s.id.Alive() {
			return s.id, nil
		}
	}
	log, err := os.OpenFile(filepath.Join(dir, fileLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	defer func() { _ = log.Close() }()
	return p.exec(nil, log, dir, l.Token)
}

func (p *Pool) exec(stdin, out *os.File, args ...string) (proc.ID, error) {
	c := exec.Command(p.exe, append([]string{Arg}, args...)...)
	c.Args[0] = Arg
	c.Dir = "/"
	// One thread running Go code is enough, and the agent's environment may hold a credential.
	c.Env = []string{"GOMAXPROCS=1", "PATH=" + os.Getenv("PATH")}
	if stdin != nil {
		c.Stdin = stdin
	}
	if out != nil {
		c.Stdout, c.Stderr = out, out
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	leaf, err := p.leaf()
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	if leaf != nil {
		defer func() { _ = leaf.Close() }()
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(leaf.Fd())
	}
	if err := c.Start(); err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	// Our child until one of us ends; reap it, whenever that is.
	id, err := proc.Of(c.Process.Pid)
	go func() { _ = c.Wait() }()
	if err != nil {
		return proc.ID{}, fmt.Errorf("start shim: %w", err)
	}
	return id, nil
}

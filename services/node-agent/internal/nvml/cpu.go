package nvml

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// launch starts the child and keeps the account of its processor time.
func (p *Provider) launch(env []string) (*process, error) {
	c, err := start(p.opts.Binary, env, p.heard, func(pid int, d time.Duration) {
		p.mu.Lock()
		p.spent += d
		if p.pid == pid { // else the next child runs already
			p.pid = 0
		}
		p.mu.Unlock()
	})
	if err == nil {
		p.mu.Lock()
		p.pid = c.cmd.Process.Pid
		p.mu.Unlock()
	}
	return c, err
}

// HelperCPU implements device.Helper.
func (p *Provider) HelperCPU() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.spent
	if p.pid != 0 {
		now += processCPU(p.pid)
	}
	// Between a child's end and its account there is a moment in which neither has it.
	p.shown = max(p.shown, now)
	return p.shown
}

// processCPU reads the processor time of a running process, 0 where proc does not tell.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	w := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(w) < 13 {
		return 0
	}
	ticks := 0
	for _, f := range w[11:13] {
		n, err := strconv.Atoi(string(f))
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100)
}

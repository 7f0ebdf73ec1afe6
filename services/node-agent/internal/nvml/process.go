package nvml

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// errDied: the child ended while it was asked something.
var errDied = errors.New("nvml: the child process ended")

// errLate: no answer before the deadline.
var errLate = errors.New("nvml: no answer in time")

// process is one child. call is used by one goroutine.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer // closed when the child's output ends
	stderr  tail
	nextID  uint64
	spent   func(int, time.Duration) // told what the child had used once it has ended
}

// start runs binary as a child; events get the answers with ID 0, spent the processor time of the child at its end.
func start(binary string, env []string, events func(answer), spent func(int, time.Duration)) (*process, error) {
	p := &process{cmd: exec.Command(binary, Argument), answers: make(chan answer, 1), spent: spent}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the parent's to handle
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("nvml: %w", err)
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("nvml: %w", err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("nvml: start child: %w", err)
	}
	go p.read(out, events)
	return p, nil
}

// read delivers the child's lines until its output ends, then reaps it.
func (p *process) read(out io.Reader, events func(answer)) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var a answer
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue // something in the library printed
		}
		if a.ID == 0 {
			events(a)
		} else {
			p.answers <- a
		}
	}
	_ = p.cmd.Wait()
	if st := p.cmd.ProcessState; st != nil {
		p.spent(st.Pid(), st.UserTime()+st.SystemTime())
	}
	close(p.answers)
}

// call sends one request and waits for its answer; after any error the process must be killed.
func (p *process) call(r request, within time.Duration) (answer, error) {
	p.nextID++
	r.ID = p.nextID
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return answer{}, p.died()
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case a, ok := <-p.answers:
			if !ok {
				return answer{}, p.died()
			}
			if a.ID == r.ID {
				return a, nil
			}
		case <-timer.C:
			return answer{}, fmt.Errorf("%w: %s %s", errLate, r.Op, r.UUID)
		}
	}
}

func (p *process) died() error {
	if said := p.stderr.String(); said != "" {
		return fmt.Errorf("%w: %s", errDied, said)
	}
	return errDied
}

// kill ends the child. One that sits in the kernel for ever is left behind; it ends when the kernel lets it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.in.Close()
	go func() {
		for range p.answers { // let read finish and reap
		}
	}()
}

// tail keeps the last line that the child wrote to its standard error.
type tail struct {
	mu   sync.Mutex
	text string
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := strings.TrimSpace(string(b)); s != "" {
		s = s[strings.LastIndexByte(s, '\n')+1:]
		t.text = s[max(0, len(s)-300):]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text
}

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/pci"
)

// Options of Open. The zero value is right for a machine with NVIDIA's driver.
type Options struct {
	Library      string        // path of libnvidia-ml.so.1; empty = the linker's
	SysRoot      string        // empty = /sys
	Binary       string        // run as the child; empty = this one
	CallDeadline time.Duration // of one call about one device; 0 = 2 s
	OpenDeadline time.Duration // of loading the library, which may wake every card; 0 = 30 s
	Rescan       time.Duration // between counts of the devices; 0 = 10 s
	Retry        time.Duration // before the first try of a failed device, doubled up to twenty times this; 0 = 30 s
}

func (o Options) withDefaults() Options {
	for p, d := range map[*time.Duration]time.Duration{&o.CallDeadline: 2 * time.Second, &o.OpenDeadline: 30 * time.Second,
		&o.Rescan: 10 * time.Second, &o.Retry: 30 * time.Second} {
		if *p == 0 {
			*p = d
		}
	}
	if o.SysRoot == "" {
		o.SysRoot = "/sys"
	}
	if o.Binary == "" {
		o.Binary = "/proc/self/exe" // survives the file's replacement by an upgrade
		if _, err := os.Stat(o.Binary); err != nil {
			o.Binary, _ = os.Executable()
		}
	}
	return o
}

// Provider implements device.Provider. One worker goroutine talks to the child, with deadlines of its own; calls wait
// for it no longer than their contexts allow.
type Provider struct {
	opts   Options
	tree   pci.Tree
	wake   chan struct{}
	work   chan func()
	closed chan struct{}
	done   chan struct{} // the worker has ended

	// Owned by the worker.
	child   *process
	lastNow time.Time
	rescan  time.Time
	strikes int       // failed starts in a row
	down    time.Time // no start before this

	mu     sync.Mutex
	shut   bool
	cards  []*known // ordered by PCI address
	driver string
	raw    []answer // events of the child, not yet judged
	queue  []device.Event
	pid    int           // of the child; 0 = none
	spent  time.Duration // processor time of ended children
	shown  time.Duration // what HelperCPU said last
}

// Open starts the child and lists the devices. Without the library it fails with device.ErrNoLibrary, in one line with
// the cure.
func Open(ctx context.Context, opts Options) (*Provider, error) {
	opts = opts.withDefaults()
	p := &Provider{opts: opts, tree: pci.Tree{Root: opts.SysRoot}, wake: make(chan struct{}, 1),
		work: make(chan func()), closed: make(chan struct{}), done: make(chan struct{})}
	go p.loop()
	var bootErr error
	err := p.run(ctx, func() { bootErr = p.boot(time.Time{}) })
	if err == nil {
		err = bootErr
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Provider) loop() {
	defer close(p.done)
	for {
		select {
		case f := <-p.work:
			f()
		case <-p.closed:
			p.stop()
			return
		}
	}
}

// run has the worker do f. An error means that f's results must not be looked at: it may still be running.
func (p *Provider) run(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	finished := make(chan struct{})
	select {
	case <-p.closed:
		return device.ErrClosed
	default:
	}
	select {
	case p.work <- func() { f(); close(finished) }:
	case <-ctx.Done():
		return ended(ctx)
	case <-p.closed:
		return device.ErrClosed
	}
	select {
	case <-finished:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-p.closed:
		return device.ErrClosed
	}
}

// ended is the error of a call whose context ended before the hardware answered.
func ended(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", device.ErrHung, ctx.Err())
	}
	return ctx.Err()
}

// Simulated implements device.Provider.
func (p *Provider) Simulated() bool { return false }

// Wake implements device.Provider.
func (p *Provider) Wake() <-chan struct{} { return p.wake }

// Close implements device.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	if !p.shut {
		p.shut = true
		close(p.closed)
	}
	p.mu.Unlock()
	select { // a worker in the midst of a call ends at that call's deadline
	case <-p.done:
	case <-time.After(p.opts.CallDeadline):
	}
	return nil
}

// Inventory implements device.Provider, from what is known: it waits for nothing.
func (p *Provider) Inventory(ctx context.Context) ([]*weftv1.Device, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return nil, "", device.ErrClosed
	}
	out := make([]*weftv1.Device, len(p.cards))
	for i, c := range p.cards {
		out[i] = c.entry
	}
	return out, p.driver, nil
}

// Events implements device.Provider.
func (p *Provider) Events(ctx context.Context, now time.Time) ([]device.Event, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shut {
		return nil, device.ErrClosed
	}
	p.judge(now)
	out := p.queue
	p.queue = nil
	return out, nil
}

// Sample implements device.Provider.
func (p *Provider) Sample(ctx context.Context, now time.Time) ([]device.Sample, error) {
	var out []device.Sample
	var err error
	if waitErr := p.run(ctx, func() { out, err = p.sample(now) }); waitErr != nil {
		return nil, waitErr
	}
	return out, err
}

// heard takes an event from the child.
func (p *Provider) heard(a answer) {
	p.mu.Lock()
	p.raw = append(p.raw, a)
	p.mu.Unlock()
	p.nudge()
}

func (p *Provider) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// ask calls the child. When it does not answer, or has ended, it is killed and the next tick starts another.
func (p *Provider) ask(r request, within time.Duration) (answer, error) {
	if p.child == nil {
		return answer{}, errDied
	}
	a, err := p.child.call(r, within)
	if err != nil {
		p.stop()
	}
	return a, err
}

func (p *Provider) stop() {
	if p.child != nil {
		p.child.kill()
		p.child = nil
	}
}

var _ device.Provider = (*Provider)(nil)

// openError makes the child's refusal to open one clean message with a cure.
func openError(a answer, err error) error {
	switch {
	case err != nil && errors.Is(err, errLate):
		return fmt.Errorf("%w: the driver library did not open in time; look for stuck GPUs in the kernel log", device.ErrHung)
	case err != nil:
		return fmt.Errorf("%w: the driver library cannot be used (%w); install NVIDIA's driver 450 or newer", device.ErrNoLibrary, err)
	case a.Code == codeNotBuilt:
		return fmt.Errorf("%w: %s, or use simulated devices", device.ErrNoLibrary, a.Error)
	case a.Code == codeNoLibrary:
		return fmt.Errorf("%w: %s; install NVIDIA's driver (on Debian and Ubuntu: nvidia-driver and libnvidia-ml1), or use simulated devices", device.ErrNoLibrary, a.Error)
	case a.Code == codeDriver:
		return fmt.Errorf("%w: the library is there but not its kernel driver (%s); load the module nvidia, or reboot after an upgrade", device.ErrNoLibrary, a.Error)
	default:
		return fmt.Errorf("nvml: %s", a.Error)
	}
}

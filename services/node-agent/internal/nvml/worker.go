package nvml

import (
	"errors"
	"fmt"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/metric"
	"github.com/weft-fabric/weft/services/node-agent/internal/pci"
)

// The functions of this file run on the worker.

// strikesToFail is how many starts in a row may fail before every device counts as failed.
const strikesToFail = 3

// boot starts a child and lists the devices, leaving out those whose time to be tried has not come. A device about which
// the child hangs is left out of the next try.
func (p *Provider) boot(now time.Time) error {
	p.stop()
	skip := map[int]bool{}
	p.mu.Lock()
	for _, k := range p.cards {
		k.present = false
		if k.trouble == hung && now.Before(k.retry) {
			skip[k.index] = true
		}
	}
	p.mu.Unlock()
	for {
		stuck, err := p.enumerate(now, skip)
		if err == nil {
			break
		}
		if stuck < 0 {
			return err
		}
		skip[stuck] = true
		p.mu.Lock()
		for _, k := range p.cards {
			if k.index == stuck {
				p.fail(k, hung, 0, "does not answer", now)
			}
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.cards {
		if !k.present && k.trouble == sound {
			p.fail(k, missing, 0, fmt.Sprintf("missing: the driver lists %d of %d devices", p.present(), len(p.cards)), now)
		}
	}
	return nil
}

func (p *Provider) present() int {
	n := 0
	for _, k := range p.cards {
		if k.present {
			n++
		}
	}
	return n
}

// enumerate is one try of boot; stuck is the index of the device about which the child did not answer, else -1.
func (p *Provider) enumerate(now time.Time, skip map[int]bool) (stuck int, err error) {
	var env []string
	if p.opts.Library != "" {
		env = append(env, "WEFT_NVML_LIBRARY="+p.opts.Library)
	}
	if p.child, err = p.launch(env); err != nil {
		return -1, err
	}
	a, err := p.ask(request{Op: opOpen}, p.opts.OpenDeadline)
	if err != nil || a.Error != "" {
		p.stop()
		return -1, openError(a, err)
	}
	p.mu.Lock()
	p.driver = a.Driver
	p.mu.Unlock()
	var uuids []string
	for i := range a.Count {
		if skip[i] {
			continue
		}
		d, err := p.ask(request{Op: opIdentify, Index: i}, p.opts.CallDeadline)
		if err != nil {
			return i, err
		}
		if d.Identity == nil {
			continue // lost: boot finds it absent
		}
		address, err := pci.Normalize(d.Identity.PCI)
		if err != nil {
			p.stop()
			return -1, err
		}
		place, _ := p.tree.Place(address) // a container may hide sysfs: then the place is unknown
		p.mu.Lock()
		p.meet(*d.Identity, i, place, address, now)
		p.mu.Unlock()
		uuids = append(uuids, d.Identity.UUID)
	}
	peers := map[string][]string{}
	for _, u := range uuids {
		r, err := p.ask(request{Op: opPeers, UUID: u}, p.opts.CallDeadline)
		if err != nil {
			return p.indexOf(u), err
		}
		peers[u] = r.Peers
		if _, err := p.ask(request{Op: opWatch, UUID: u}, p.opts.CallDeadline); err != nil {
			return p.indexOf(u), err
		}
	}
	p.mu.Lock()
	p.cliques(peers)
	p.mu.Unlock()
	return -1, nil
}

func (p *Provider) indexOf(uuid string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.find(uuid).index
}

// tick keeps the child running and looks after failed devices.
func (p *Provider) tick(now time.Time) error {
	p.mu.Lock()
	p.lastNow = now
	p.judge(now)
	p.mu.Unlock()
	if p.child == nil || p.wantsBoot(now) {
		if p.child == nil && now.Before(p.down) {
			return fmt.Errorf("nvml: the driver library is down, next try in %v", p.down.Sub(now))
		}
		if err := p.boot(now); err != nil {
			p.strike(now, err)
			return err
		}
		p.strikes, p.down = 0, time.Time{}
		p.rescan = now.Add(p.opts.Rescan)
		return p.prove(now)
	}
	if !now.Before(p.rescan) {
		p.rescan = now.Add(p.opts.Rescan)
		if err := p.recount(now); err != nil {
			return err
		}
	}
	return p.prove(now)
}

func (p *Provider) strike(now time.Time, err error) {
	p.strikes++
	p.down = now.Add(min(time.Duration(p.strikes)*time.Second, p.opts.Retry))
	if p.strikes < strikesToFail {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.cards {
		if k.trouble == sound {
			p.fail(k, dead, 0, "the driver does not work: "+err.Error(), now)
		}
	}
}

// wantsBoot says whether a failed device is due that only a fresh child can see again.
func (p *Provider) wantsBoot(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.cards {
		if (k.trouble == missing || k.trouble == hung || k.trouble == lost) && !now.Before(k.retry) {
			return true
		}
	}
	return false
}

// recount compares the driver's count, and the bus, with what is known.
func (p *Provider) recount(now time.Time) error {
	a, err := p.ask(request{Op: opCount}, p.opts.CallDeadline)
	if err != nil {
		return err
	}
	onBus, busErr := p.tree.Accelerators()
	listed := map[string]bool{}
	for _, address := range onBus {
		listed[address] = true
	}
	p.mu.Lock()
	differs := a.Error == "" && a.Count != p.present()
	for _, k := range p.cards {
		// A bus that shows none of our devices is a bus that a container hides.
		if k.present && k.trouble == sound && busErr == nil && len(onBus) > 0 && k.place.Path != nil && !listed[k.address] {
			p.fail(k, missing, 0, "missing: no longer on the PCI bus", now)
		}
	}
	p.mu.Unlock()
	if !differs {
		return nil
	}
	if err := p.boot(now); err != nil {
		p.strike(now, err)
		return err
	}
	return nil
}

// prove asks failed devices whose time has come for proof that they work.
func (p *Provider) prove(now time.Time) error {
	p.mu.Lock()
	var try []*known
	for _, k := range p.cards {
		if k.trouble != sound && !now.Before(k.retry) {
			try = append(try, k)
		}
	}
	p.mu.Unlock()
	for _, k := range try {
		if err := p.proveOne(k, now); err != nil {
			return err
		}
	}
	return nil
}

func (p *Provider) proveOne(k *known, now time.Time) error {
	if !k.present {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fail(k, k.trouble, 0, k.reason, now) // waits longer for the next try
		return nil
	}
	a, err := p.ask(request{Op: opProbe, UUID: k.id.UUID}, p.opts.CallDeadline)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.fail(k, hung, 0, "does not answer", now)
		return err
	case a.Error != "":
		p.fail(k, k.trouble, 0, k.reason, now)
	case a.Action == nil && k.trouble == xid:
		// The driver cannot say that the fault is over; only its restart clears the count.
		p.fail(k, k.trouble, 0, k.reason, now)
	case a.Action != nil && *a.Action != 0:
		p.fail(k, k.trouble, 0, fmt.Sprintf("%s; the driver asks for %s", firstLine(k.reason), actions[min(int(*a.Action), len(actions)-1)]), now)
	default:
		p.heal(k, now)
	}
	return nil
}

// actions are the recovery actions of field 230 in words.
var actions = [...]string{"nothing", "a reset", "a reboot", "draining P2P", "draining and a reset", "an IMEX recovery", "a bus reset", "a system reboot", "an unknown recovery"}

// firstLine is a reason without what an earlier probe added.
func firstLine(s string) string {
	for i := range s {
		if s[i] == ';' {
			return s[:i]
		}
	}
	return s
}

// crashesToFail is how many times in a row the child may end about a device before the device is blamed.
const crashesToFail = 2

func (p *Provider) sample(now time.Time) ([]device.Sample, error) {
	if err := p.tick(now); err != nil {
		return nil, wrap(err)
	}
	p.mu.Lock()
	cards := append([]*known(nil), p.cards...)
	p.mu.Unlock()
	var out []device.Sample
	for _, k := range cards {
		p.mu.Lock()
		usable := k.trouble == sound && k.present
		p.mu.Unlock()
		if !usable {
			continue
		}
		classes := k.classes(now)
		if classes == 0 {
			continue
		}
		a, err := p.ask(request{Op: opSample, UUID: k.id.UUID, Class: classes}, p.opts.CallDeadline)
		if err != nil {
			p.blame(k, err, now)
			return out, fmt.Errorf("%w: %s", wrap(err), k.id.UUID)
		}
		k.crashes = 0
		if a.Error != "" {
			if a.Code == codeLost {
				p.mu.Lock()
				p.fail(k, lost, 0, "lost: "+a.Error, now)
				p.mu.Unlock()
			}
			continue
		}
		s := device.Sample{UUID: k.id.UUID, At: now}
		for name, v := range a.Values {
			if id, ok := metric.ByName(name); ok {
				s.Values.Set(id, v)
			}
		}
		if s.Values.Len() > 0 {
			out = append(out, s)
		}
	}
	return out, nil
}

// blame charges a device for a child that hung or ended.
func (p *Provider) blame(k *known, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if errors.Is(err, errLate) {
		p.fail(k, hung, 0, "does not answer", now)
		return
	}
	if k.crashes++; k.crashes >= crashesToFail {
		p.fail(k, hung, 0, "the driver library ends its process when asked about it", now)
	}
}

// wrap makes a child's silence the port's.
func wrap(err error) error {
	if errors.Is(err, errLate) {
		return fmt.Errorf("%w: %w", device.ErrHung, err)
	}
	return err
}

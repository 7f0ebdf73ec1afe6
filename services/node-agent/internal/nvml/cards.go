package nvml

import (
	"sort"
	"time"

	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/pci"
)

// trouble is why a device is failed; it decides what proves that it works again.
type trouble uint8

const (
	sound   trouble = iota
	missing         // not listed by the driver, or gone from the bus
	hung            // a call about it did not return
	lost            // calls about it fail
	xid             // it reported a fatal error: only the driver's own word clears that
	dead            // the driver as a whole does not work
)

// known is one device that was listed at least once; it stays for the provider's life.
type known struct {
	id      identity
	address string
	place   pci.Place
	clique  uint32
	index   int // in the child's enumeration, where it was last seen there
	present bool

	trouble trouble
	reason  string
	retry   time.Time
	backoff time.Duration
	crashes int // of the child in a row, about this device

	due   [3]time.Time
	entry *weftv1.Device
}

func (k *known) list() {
	health := weftv1.DeviceHealth_DEVICE_HEALTH_OK
	if k.trouble != sound {
		health = weftv1.DeviceHealth_DEVICE_HEALTH_FAILED
	}
	k.entry = weftv1.Device_builder{
		Uuid: new(k.id.UUID), Pci: new(k.address), Minor: new(uint32(k.id.Minor)),
		Model: new(canonicalModel(k.id.Name, k.id.Memory)), MemoryBytes: new(int64(k.id.Memory)),
		Numa: new(k.place.NUMA), Clique: new(k.clique), PcieSwitch: new(k.place.Switch), MigCapable: new(k.id.MIG),
		Health: new(health), HealthReason: new(k.reason),
	}.Build()
}

// classes returns which cadence classes are due, as bits, and counts them as done.
func (k *known) classes(now time.Time) uint8 {
	bits := uint8(0)
	for c := range k.due {
		if !now.Before(k.due[c]) {
			bits |= 1 << c
			every := metric.Class(c).Every() // on a grid, so that late ticks do not add up
			k.due[c] = now.Truncate(every).Add(every)
		}
	}
	return bits
}

// The functions below need p.mu.

func (p *Provider) find(uuid string) *known {
	for _, k := range p.cards {
		if k.id.UUID == uuid {
			return k
		}
	}
	return nil
}

// meet records what the child said about one device.
func (p *Provider) meet(id identity, index int, place pci.Place, address string, now time.Time) {
	k := p.find(id.UUID)
	if k == nil {
		k = &known{id: id, address: address, place: place}
		p.cards = append(p.cards, k)
		sort.Slice(p.cards, func(i, j int) bool { return p.cards[i].address < p.cards[j].address })
		if !p.lastNow.IsZero() {
			p.emit(device.Event{UUID: id.UUID, At: now, Kind: device.Changed, Reason: "a device that was not there before"})
		}
	}
	k.id, k.index, k.present, k.address, k.place = id, index, true, address, place
	k.list()
}

func (p *Provider) fail(k *known, t trouble, code uint32, why string, now time.Time) {
	again := k.trouble != sound
	k.trouble, k.reason = t, why
	if k.backoff = min(max(k.backoff*2, p.opts.Retry), 20*p.opts.Retry); !again {
		k.backoff = p.opts.Retry
	}
	k.retry = now.Add(k.backoff)
	k.list()
	if !again {
		p.emit(device.Event{UUID: k.id.UUID, At: now, Kind: device.Failed, XID: code, Reason: why})
	}
}

func (p *Provider) heal(k *known, now time.Time) {
	k.trouble, k.reason, k.backoff, k.crashes, k.due = sound, "", 0, 0, [3]time.Time{}
	k.list()
	p.emit(device.Event{UUID: k.id.UUID, At: now, Kind: device.Recovered, Reason: "answers again, and the driver asks for no recovery"})
}

func (p *Provider) emit(e device.Event) {
	p.queue = append(p.queue, e)
	p.nudge()
}

// judge turns what the child heard into events.
func (p *Provider) judge(now time.Time) {
	for _, a := range p.raw {
		k := p.find(a.UUID)
		switch {
		case k == nil:
		case a.XID != 0 && fatal[a.XID] != "":
			if k.trouble == sound || k.trouble == lost {
				p.fail(k, xid, a.XID, reason(a.XID), now)
			}
		case a.XID != 0:
			p.emit(device.Event{UUID: a.UUID, At: now, Kind: device.Noted, XID: a.XID, Reason: reason(a.XID)})
		case a.Code == codeLost && k.trouble == sound:
			p.fail(k, lost, 0, "lost: "+a.Error, now)
		}
	}
	p.raw = nil
}

// cliques numbers the sets of devices that are all joined with each other by NVLink, in order of PCI address.
func (p *Provider) cliques(peers map[string][]string) {
	joined := func(a, b string) bool {
		for _, x := range peers[a] {
			if x == b {
				return true
			}
		}
		return false
	}
	var sets [][]*known
next:
	for _, k := range p.cards {
		if len(peers[k.id.UUID]) == 0 {
			continue // not asked this time, or on its own: keep what was known
		}
		for i, set := range sets {
			all := true
			for _, m := range set {
				all = all && joined(k.id.UUID, m.id.UUID)
			}
			if all {
				sets[i] = append(set, k)
				continue next
			}
		}
		sets = append(sets, []*known{k})
	}
	for i, set := range sets {
		for _, k := range set {
			k.clique = uint32(i) + 1
			k.list()
		}
	}
}

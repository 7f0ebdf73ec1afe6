package sample

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	"github.com/weft-fabric/weft/libs/device"
	"github.com/weft-fabric/weft/libs/metric"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Config of a sampler. Zero fields get defaults, where there is one.
type Config struct {
	Node  string
	Epoch string // names this life of the agent: another one each time it starts

	Tick  time.Duration // between readings of the devices; 0 = 100 ms
	Batch time.Duration // what one batch covers, a multiple of Tick; 0 = 1 s
	Host  time.Duration // between readings of the host; 0 = 1 s
	Files Host

	// Keep is how many batches wait while the bus does not take them; then the oldest is given up. 0 = 30.
	Keep int
	// Patience is how long one reading of the devices may take; 0 = 5 s.
	Patience time.Duration
}

func (c Config) withDefaults() Config {
	for p, d := range map[*time.Duration]time.Duration{&c.Tick: 100 * time.Millisecond, &c.Batch: time.Second, &c.Host: time.Second, &c.Patience: 5 * time.Second} {
		if *p <= 0 {
			*p = d
		}
	}
	if c.Batch < c.Tick {
		c.Batch = c.Tick
	}
	c.Batch = c.Batch / c.Tick * c.Tick
	if c.Keep <= 0 {
		c.Keep = 30
	}
	return c
}

// slowEvery is the interval of the host values that hardly ever change.
const slowEvery = 30 * time.Second

// publishWithin bounds one publication: the next reading is due soon.
const publishWithin = 500 * time.Millisecond

// Shell is the sampler, a run.Shell: it acts on time alone.
type Shell struct {
	cfg      Config
	dev      device.Provider // nil = a machine without devices
	out      bus.Outbox
	batch    *metric.Batch // being filled; nil between
	column   map[key]int   // of batch
	seq      uint64
	next     time.Time // of the next tick
	nextHost time.Time
	nextSlow time.Time
	index    map[string]int32 // UUID → position in the inventory
	queue    []*weftv1.MetricBatch
	failing  map[string]bool
	errors   float64
	dropped  float64
}

type key struct {
	id     metric.ID
	device int32
}

// New makes a sampler of a machine that publishes to out, METRICS of the NODES account. dev may be nil.
func New(cfg Config, dev device.Provider, out bus.Outbox) *Shell {
	return &Shell{cfg: cfg.withDefaults(), dev: dev, out: out, failing: map[string]bool{}}
}

// Wakes implements run.Shell.
func (s *Shell) Wakes() []<-chan struct{} { return nil }

// Step implements run.Shell. It returns no errors: the loop would back off, and the readings go on while one source or
// the bus fails. Failures are logged when they begin and end, and counted.
func (s *Shell) Step(ctx context.Context, now time.Time) (did bool, next time.Time, err error) {
	if !s.next.IsZero() && now.Before(s.next) {
		// A clock that was set back must not stop the sampling until it has caught up.
		if s.next.Sub(now) <= s.cfg.Tick {
			return false, s.next, nil
		}
	}
	// The grid hangs on the clock, not on when the last reading ended: a slow reading costs ticks and shifts none.
	s.next = now.Truncate(s.cfg.Tick).Add(s.cfg.Tick)
	if s.batch != nil && (s.position(now) >= s.batch.Samples || s.position(now) < 0) {
		s.close()
		s.note("publishing", s.publish(ctx))
	}
	if s.batch == nil {
		s.open(now)
	}
	s.note("devices", s.devices(ctx, now))
	s.note("host", s.host(now))
	return true, s.next, nil
}

// note logs where a failure begins or ends.
func (s *Shell) note(what string, err error) {
	switch was := s.failing[what]; {
	case err != nil && !was:
		s.failing[what] = true
		slog.Warn("sampling is incomplete", "part", what, "error", err)
	case err == nil && was:
		delete(s.failing, what)
		slog.Info("sampling is complete again", "part", what)
	}
}

func (s *Shell) position(now time.Time) int {
	d := now.UnixNano() - s.batch.T0
	if d < 0 {
		return -1
	}
	return int(d / s.batch.DT)
}

func (s *Shell) open(now time.Time) {
	s.seq++
	s.batch = &metric.Batch{Node: s.cfg.Node, Epoch: s.cfg.Epoch, Seq: s.seq, T0: now.Truncate(s.cfg.Batch).UnixNano(),
		DT: int64(s.cfg.Tick), Samples: int(s.cfg.Batch / s.cfg.Tick), Simulated: s.dev != nil && s.dev.Simulated()}
	s.column = map[key]int{}
}

func (s *Shell) record(dev int32, at time.Time, v *metric.Values) {
	i := s.position(at)
	if i < 0 || i >= s.batch.Samples {
		return // stamped outside this batch: sending it here would lie about its time
	}
	for id := range metric.ID(metric.Count) {
		x, ok := v.Get(id)
		if !ok {
			continue
		}
		c, ok := s.column[key{id, dev}]
		if !ok {
			c = len(s.batch.Series)
			s.column[key{id, dev}] = c
			s.batch.Series = append(s.batch.Series, metric.NewSeries(id, dev, s.batch.Samples))
		}
		s.batch.Series[c].Set(i, x)
	}
}

func (s *Shell) devices(ctx context.Context, now time.Time) error {
	if s.dev == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Patience)
	defer cancel()
	samples, err := s.dev.Sample(ctx, now)
	for i := range samples {
		dev, ok := s.index[samples[i].UUID]
		if !ok {
			if e := s.list(ctx); e != nil {
				err = errors.Join(err, e)
			}
			if dev, ok = s.index[samples[i].UUID]; !ok {
				continue
			}
		}
		s.record(dev, samples[i].At, &samples[i].Values)
	}
	if err != nil {
		s.errors++
		return fmt.Errorf("sample devices: %w", err)
	}
	return nil
}

func (s *Shell) list(ctx context.Context) error {
	list, _, err := s.dev.Inventory(ctx)
	if err != nil {
		return err
	}
	s.index = make(map[string]int32, len(list))
	for i, d := range list {
		s.index[d.GetUuid()] = int32(i)
	}
	return nil
}

func (s *Shell) host(now time.Time) error {
	if now.Before(s.nextHost) && s.nextHost.Sub(now) <= s.cfg.Host {
		return nil
	}
	s.nextHost = now.Truncate(s.cfg.Host).Add(s.cfg.Host)
	slow := !now.Before(s.nextSlow) || s.nextSlow.Sub(now) > slowEvery
	if slow {
		s.nextSlow = now.Add(slowEvery)
	}
	v, err := s.cfg.Files.Read(slow)
	if err != nil {
		s.errors++
		err = fmt.Errorf("sample host: %w", err)
	}
	if h, ok := s.dev.(device.Helper); ok {
		if own, measured := v.Get(metric.AgentCPU); measured {
			v.Set(metric.AgentCPU, own+h.HelperCPU().Seconds())
		}
	}
	v.Set(metric.AgentSampleErrors, s.errors)
	v.Set(metric.AgentBatchesDropped, s.dropped)
	s.record(-1, now, &v)
	return err
}

// close ends the batch being filled and queues it.
func (s *Shell) close() {
	s.queue = append(s.queue, metric.Encode(s.batch))
	s.batch, s.column = nil, nil
}

// publish sends what waits, oldest first, and gives up the oldest of what is left if that is too much. A batch whose
// fate is unknown is sent again; readers know it by its number.
func (s *Shell) publish(ctx context.Context) error {
	defer func() {
		for len(s.queue) > s.cfg.Keep {
			s.queue = s.queue[1:]
			s.dropped++
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, publishWithin)
	defer cancel()
	for len(s.queue) > 0 {
		data, err := proto.Marshal(s.queue[0])
		if err != nil {
			return fmt.Errorf("sample: encode: %w", err)
		}
		if _, err := s.out.Publish(ctx, bus.Message{Subject: bus.SubjectMetric(s.cfg.Node), Data: data}); err != nil {
			return fmt.Errorf("sample: publish batch %d: %w", s.queue[0].GetSeq(), err)
		}
		s.queue = s.queue[1:]
	}
	return nil
}

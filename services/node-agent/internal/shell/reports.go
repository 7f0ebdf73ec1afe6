package shell

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
)

// Reports is the outbox of this node's reports. What is said is derived from files and processes, so an agent that dies
// with reports unsent loses nothing: the next one says it all again.
type Reports struct {
	out  bus.Outbox
	node string
	boot string
	seq  *sequence
	wake signal

	mu    sync.Mutex
	queue []*weftv1.Report
}

// NewReports continues the numbering that is kept in dir.
func NewReports(out bus.Outbox, dir, node, boot string) (*Reports, error) {
	seq, err := openSequence(filepath.Join(dir, "report-seq"))
	if err != nil {
		return nil, err
	}
	return &Reports{out: out, node: node, boot: boot, seq: seq, wake: newSignal()}, nil
}

// say queues one report; set fills in its kind.
func (r *Reports) say(now time.Time, set func(*weftv1.Report)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, err := r.seq.next()
	if err != nil {
		return err
	}
	m := weftv1.Report_builder{Node: &r.node, BootId: &r.boot, Seq: &n, TimeNs: new(now.UnixNano())}.Build()
	set(m)
	r.queue = append(r.queue, m)
	r.wake.set()
	return nil
}

// Name for logs.
func (r *Reports) Name() string { return "node-agent reports" }

// Wakes implements run.Shell.
func (r *Reports) Wakes() []<-chan struct{} { return []<-chan struct{}{r.wake} }

// publishTimeout is longer than an election of the bus.
const publishTimeout = 12 * time.Second

// Step publishes the oldest report. After a failure the same one is published again: the reader knows it by its number.
func (r *Reports) Step(ctx context.Context, _ time.Time) (bool, time.Time, error) {
	r.mu.Lock()
	var m *weftv1.Report
	if len(r.queue) > 0 {
		m = r.queue[0]
	}
	r.mu.Unlock()
	if m == nil {
		return false, time.Time{}, nil
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return false, time.Time{}, fmt.Errorf("report: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if _, err := r.out.Publish(ctx, bus.Message{Subject: bus.SubjectReport(r.node), Data: data}); err != nil {
		return false, time.Time{}, fmt.Errorf("report: %w", err)
	}
	r.mu.Lock()
	r.queue = r.queue[1:]
	r.mu.Unlock()
	return true, time.Time{}, nil
}

// sequence counts upwards across restarts. It writes only once per block, so numbers have gaps, never repeats.
type sequence struct {
	file        string
	last, saved uint64
}

const sequenceBlock = 1 << 16

func openSequence(file string) (*sequence, error) {
	s := &sequence{file: file}
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return nil, fmt.Errorf("report numbers: %w", err)
	}
	if err == nil {
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("report numbers: %s: %w", file, err)
		}
		s.last, s.saved = n, n
	}
	return s, nil
}

func (s *sequence) next() (uint64, error) {
	if s.last == s.saved {
		if err := replaceFile(s.file, strconv.AppendUint(nil, s.saved+sequenceBlock, 10)); err != nil {
			return 0, fmt.Errorf("report numbers: %w", err)
		}
		s.saved += sequenceBlock
	}
	s.last++
	return s.last, nil
}

// replaceFile writes a file whole; it is for what need not survive a crash of the machine.
func replaceFile(name string, data []byte) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

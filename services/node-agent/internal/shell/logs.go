package shell

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/weft-fabric/weft/libs/bus"
	weftv1 "github.com/weft-fabric/weft/proto/gen/weft/v1"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// Bounds of what goes to the bus. The files keep everything, until they are freed.
const (
	logChunk   = 64 << 10
	logRate    = 1 << 20 // bytes per second of one file, on average
	logBurst   = 4 << 20
	logBehind  = 8 << 20   // a file further behind than this is cut to its newest part,
	logNewest  = 2 << 20   // of this size
	logKeep    = 256 << 20 // of one file on disk; what is older and was read is freed
	logEvery   = 100 * time.Millisecond
	logOffsets = ".offsets.json"
)

// Logs copies ranks' output from their files to the bus. It never slows a rank: ranks write to files, and what is too
// much is left out and counted.
type Logs struct {
	out     bus.Outbox
	node    string
	wake    signal
	flushed signal

	mu    sync.Mutex
	tails map[reconcile.ID]*tail
}

type tail struct {
	id        reconcile.ID
	dir       string
	files     []*logFile
	finishing bool // the ranks have ended: read to the end
	flushed   bool
	changed   bool // offsets differ from those kept
}

type logFile struct {
	name    string
	rank    uint32
	fd      uint32
	off     int64
	dropped int64
	torn    bool  // off lies within a line
	freed   int64 // up to where the file's space was given back
	tokens  float64
	filled  time.Time
}

// NewLogs makes the shell.
func NewLogs(out bus.Outbox, node string) *Logs {
	return &Logs{out: out, node: node, wake: newSignal(), flushed: newSignal(), tails: map[reconcile.ID]*tail{}}
}

// add follows the output of a run, from where an agent before stopped.
func (l *Logs) add(id reconcile.ID, ranks []shim.Rank) {
	t := &tail{id: id}
	for _, r := range ranks {
		t.dir = filepath.Dir(r.Stdout)
		t.files = append(t.files, &logFile{name: r.Stdout, rank: r.Rank, fd: 1}, &logFile{name: r.Stderr, rank: r.Rank, fd: 2})
	}
	var offsets map[string]int64
	if ok, err := shim.ReadFile(t.dir, logOffsets, &offsets); ok && err == nil {
		for _, f := range t.files {
			f.off = offsets[f.key()]
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tails[id] = t
	l.wake.set()
}

// finish asks for the rest of a run's output.
func (l *Logs) finish(id reconcile.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.tails[id]; t != nil {
		t.finishing = true
		l.wake.set()
	}
}

// isFlushed says that all of a run's output was handed on.
func (l *Logs) isFlushed(id reconcile.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.tails[id]
	return t == nil || t.flushed
}

func (l *Logs) forget(id reconcile.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tails, id)
}

// Name for logs.
func (l *Logs) Name() string { return "node-agent logs" }

// Wakes implements run.Shell.
func (l *Logs) Wakes() []<-chan struct{} { return []<-chan struct{}{l.wake} }

// Step implements run.Shell.
func (l *Logs) Step(ctx context.Context, now time.Time) (bool, time.Time, error) {
	l.mu.Lock()
	var tails []*tail
	var finishing []bool
	for _, t := range l.tails {
		if !t.flushed {
			tails, finishing = append(tails, t), append(finishing, t.finishing)
		}
	}
	l.mu.Unlock()
	if len(tails) == 0 {
		return false, time.Time{}, nil
	}
	for i, t := range tails {
		rest := false
		for _, f := range t.files {
			more, err := l.copy(ctx, t, f, now, finishing[i])
			if err != nil {
				return false, time.Time{}, err
			}
			rest = rest || more
		}
		if err := t.keep(); err != nil {
			return false, time.Time{}, err
		}
		if finishing[i] && !rest {
			l.mu.Lock()
			t.flushed = true
			l.mu.Unlock()
			l.flushed.set()
		}
	}
	return false, now.Add(logEvery), nil
}

// copy publishes what a file has beyond its offset, within the rate. more says that something is left.
func (l *Logs) copy(ctx context.Context, t *tail, f *logFile, now time.Time, finishing bool) (more bool, err error) {
	file, err := os.Open(f.name)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("logs: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return false, fmt.Errorf("logs: %w", err)
	}
	size := info.Size()
	f.fill(now)
	for f.off < size {
		if behind := size - f.off; behind > logBehind {
			f.skip(behind - logNewest)
			f.torn = true
		}
		if f.tokens < 1 {
			return true, nil
		}
		b := make([]byte, min(logChunk, size-f.off))
		n, err := file.ReadAt(b, f.off)
		if err != nil && err != io.EOF {
			return false, fmt.Errorf("logs: %w", err)
		}
		b = b[:n]
		if n == 0 {
			return false, nil
		}
		if f.torn {
			f.torn = false
			f.skip(int64(bytes.IndexByte(b, '\n') + 1)) // begin where a line begins
			continue
		}
		// Whole lines, unless this is the last there will be or no line ends here.
		if i := bytes.LastIndexAny(b, "\n\r"); i >= 0 && !finishing {
			b = b[:i+1]
		} else if i < 0 && !finishing && n < logChunk {
			return false, nil
		}
		if err := l.publish(ctx, t.id, f, b, now); err != nil {
			return false, err
		}
		f.off += int64(len(b))
		f.tokens -= float64(len(b))
		f.dropped = 0
		t.changed = true
	}
	f.free(file.Name(), size)
	return false, nil
}

func (l *Logs) publish(ctx context.Context, id reconcile.ID, f *logFile, b []byte, now time.Time) error {
	data, err := proto.Marshal(weftv1.LogChunk_builder{
		Job: &id.Job, Attempt: &id.Attempt, Rank: &f.rank, Fd: &f.fd, Offset: &f.off, Data: b, TimeNs: new(now.UnixNano()), Dropped: &f.dropped,
	}.Build())
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	if _, err := l.out.Publish(ctx, bus.Message{Subject: bus.SubjectLog(l.node), Header: map[string]string{bus.HeaderJob: id.Job}, Data: data}); err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	return nil
}

func (f *logFile) key() string {
	return strconv.FormatUint(uint64(f.rank), 10) + "/" + strconv.FormatUint(uint64(f.fd), 10)
}

func (f *logFile) fill(now time.Time) {
	if f.filled.IsZero() {
		f.tokens = logBurst
	} else {
		f.tokens = min(logBurst, f.tokens+now.Sub(f.filled).Seconds()*logRate)
	}
	f.filled = now
}

func (f *logFile) skip(n int64) {
	f.off += n
	f.dropped += n
}

// free gives back the space of what was read long ago; the file keeps its length, so offsets stay true.
func (f *logFile) free(name string, size int64) {
	if size-f.freed < 2*logKeep {
		return
	}
	if err := punch(name, size-logKeep); err == nil {
		f.freed = size - logKeep
	}
}

// keep writes the offsets down, so that the next agent goes on from here. A crash repeats some chunks; readers know
// them by their offset.
func (t *tail) keep() error {
	if !t.changed {
		return nil
	}
	offsets := map[string]int64{}
	for _, f := range t.files {
		offsets[f.key()] = f.off
	}
	if err := shim.WriteFile(t.dir, logOffsets, offsets, false); err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	t.changed = false
	return nil
}

package shell

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/services/node-agent/reconcile"
)

// signal is a wake-up of capacity one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// watcher says which runs' files changed, by one inotify instance.
type watcher struct {
	file *os.File
	wake signal

	mu    sync.Mutex
	ids   map[int32]reconcile.ID
	wds   map[reconcile.ID][]int32
	dirty map[reconcile.ID]bool
	all   bool
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	w := &watcher{
		file: os.NewFile(uintptr(fd), "inotify"), wake: newSignal(),
		ids: map[int32]reconcile.ID{}, wds: map[reconcile.ID][]int32{}, dirty: map[reconcile.ID]bool{},
	}
	go w.read()
	return w, nil
}

func (w *watcher) close() { _ = w.file.Close() }

// add watches a directory for files that are renamed into it, or a file for changes.
func (w *watcher) add(id reconcile.ID, path string, mask uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, err := w.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	var wd int
	if cerr := c.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), path, mask) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("inotify: watch %s: %w", path, err)
	}
	w.ids[int32(wd)] = id
	w.wds[id] = append(w.wds[id], int32(wd))
	return nil
}

func (w *watcher) remove(id reconcile.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, err := w.file.SyscallConn()
	for _, wd := range w.wds[id] {
		if err == nil {
			// Fails if what was watched is gone, and so is the watch.
			_ = c.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
		}
		delete(w.ids, wd)
	}
	delete(w.wds, id)
	delete(w.dirty, id)
}

// mark makes a run dirty for a reason other than its files.
func (w *watcher) mark(id reconcile.ID) {
	w.mu.Lock()
	w.dirty[id] = true
	w.mu.Unlock()
	w.wake.set()
}

// take returns the runs that changed since the last call; all means every one may have.
func (w *watcher) take() (dirty map[reconcile.ID]bool, all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	dirty, all = w.dirty, w.all
	w.dirty, w.all = map[reconcile.ID]bool{}, false
	return dirty, all
}

func (w *watcher) read() {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			var ev unix.InotifyEvent
			_ = binary.Read(bytes.NewReader(b), binary.NativeEndian, &ev)
			if ev.Mask&unix.IN_Q_OVERFLOW != 0 {
				w.all = true
			} else if id, ok := w.ids[ev.Wd]; ok {
				w.dirty[id] = true
			}
			b = b[min(len(b), unix.SizeofInotifyEvent+int(ev.Len)):]
		}
		w.mu.Unlock()
		w.wake.set()
	}
}

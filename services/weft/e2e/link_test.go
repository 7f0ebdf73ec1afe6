package e2e

import (
	"net"
	"sync"
	"testing"
)

// link carries connections to one address, until it is cut or held up.
type link struct {
	l      net.Listener
	target string

	mu    sync.Mutex
	open  chan struct{} // closed while bytes may pass
	down  bool          // cut: connections end, and new ones end at once
	conns map[net.Conn]bool
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{l: l, target: target, open: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(k.open)
	go k.serve()
	t.Cleanup(func() { _ = l.Close(); k.cut() })
	return k
}

func (k *link) addr() string { return k.l.Addr().String() }

func (k *link) serve() {
	for {
		in, err := k.l.Accept()
		if err != nil {
			return
		}
		go k.carry(in)
	}
}

func (k *link) carry(in net.Conn) {
	out, err := net.Dial("tcp", k.target)
	k.mu.Lock()
	if err != nil || k.down {
		k.mu.Unlock()
		_ = in.Close()
		if err == nil {
			_ = out.Close()
		}
		return
	}
	k.conns[in], k.conns[out] = true, true
	k.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { k.pump(in, out) })
	wg.Go(func() { k.pump(out, in) })
	wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.conns, in)
	delete(k.conns, out)
}

// pump copies; what it holds while the link is held up goes on when it is free again, late.
func (k *link) pump(from, to net.Conn) {
	defer func() { _ = from.Close(); _ = to.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		k.mu.Lock()
		open := k.open
		k.mu.Unlock()
		<-open
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
	for c := range k.conns {
		_ = c.Close()
	}
}

func (k *link) hold() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = make(chan struct{})
}

// heal ends cut and hold.
func (k *link) heal() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = false
	select {
	case <-k.open:
	default:
		close(k.open)
	}
}

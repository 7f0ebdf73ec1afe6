package shell

import (
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/weft-fabric/weft/services/node-agent/internal/proc"
	"github.com/weft-fabric/weft/services/node-agent/internal/shim"
)

// Contact is when this node last had contact: the time at which the last answered beat was sent. It is kept in a file
// too, from which shims enforce the fence if no agent does. Times are proc.SinceBoot.
type Contact struct {
	file string
	wake signal

	mu   sync.Mutex
	last int64
}

const contactPrefix = "contact-"

// NewContact reads what an agent before left in dir. With nothing there contact counts from now.
func NewContact(dir, bootID string) *Contact {
	c := &Contact{file: filepath.Join(dir, contactPrefix+bootID), wake: newSignal(), last: proc.SinceBoot()}
	if t := shim.ReadContact(c.file); t != 0 {
		c.last = t
	}
	// Another boot's times mean nothing.
	if es, err := os.ReadDir(dir); err == nil {
		for _, e := range es {
			if strings.HasPrefix(e.Name(), contactPrefix) && e.Name() != contactPrefix+bootID {
				_ = os.Remove(filepath.Join(dir, e.Name()))
			}
		}
	}
	return c
}

// File is where shims read it.
func (c *Contact) File() string { return c.file }

// Last is when contact was last had.
func (c *Contact) Last() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Had notes that a beat sent at t was answered.
func (c *Contact) Had(t int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t <= c.last {
		return nil
	}
	c.last = t
	c.wake.set()
	return shim.WriteContact(c.file, t)
}

package allinone

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-fabric/weft/libs/bus"
)

// Offline is the bus of a data directory whose fabric does not run: nobody else can open the directory meanwhile.
type Offline struct {
	*bus.Embedded
	lock *os.File
}

// OpenOffline starts the bus alone. It fails with *BusyError while a fabric runs there.
func OpenOffline(dir string) (*Offline, error) {
	l, err := lock(dir)
	if err != nil {
		return nil, err
	}
	srv, err := bus.StartServer(bus.ServerConfig{Dir: filepath.Join(dir, "bus")})
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &Offline{Embedded: srv, lock: l}, nil
}

// Close stops the bus and lets the directory go.
func (o *Offline) Close() {
	o.Shutdown()
	_ = o.lock.Close()
}

// IsFabric says whether a directory is, or was, one of a fabric in one process.
func IsFabric(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "lock"))
	return err == nil
}

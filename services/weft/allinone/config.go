// Package allinone runs a whole fabric in one process: embedded bus, every service, and the agents of this machine's
// nodes. It owns wiring, data directory and context file; it contains no rule of the domain.
package allinone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-fabric/weft/libs/device"
)

// ContextFile is the name of the file in the data directory that the command line reads.
const ContextFile = "context.json"

// Context says where a fabric's door is and as whom to enter.
type Context struct {
	GRPC    string `json:"grpc"`
	REST    string `json:"rest"`
	Metrics string `json:"metrics"`
	NATS    string `json:"nats"`
	Token   string `json:"token"`
}

// Config of a fabric in one process.
type Config struct {
	Dir      string // data directory
	GRPC     string // host:port; port 0 = any free one
	REST     string
	Metrics  string
	NATS     string
	Simulate int      // simulated nodes; -1 = two if there is no real GPU, else none
	Profile  string   // of simulated nodes
	PortBase int      // first port for ranks; each node takes PortsPerNode
	Guests   []string // nodes whose agents are not started here and may sign in
	Verbose  bool     // log at level info; otherwise only warnings
	LogTo    io.Writer
}

// PortsPerNode is how many ports the ranks of one node may use.
const PortsPerNode = 500

// DefaultDir is where a fabric's data lies unless told otherwise.
func DefaultDir() string {
	if d := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "weft")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".local", "share", "weft")
}

// Profiles lists what a simulated node may be.
func Profiles() string {
	return strings.Join(device.Models(), ", ") + ", each with x<count>, such as a100-80gx8"
}

// DefaultConfig binds loopback only.
func DefaultConfig() Config {
	return Config{
		Dir: DefaultDir(), GRPC: "127.0.0.1:7400", REST: "127.0.0.1:7401", NATS: "127.0.0.1:7402", Metrics: "127.0.0.1:7403",
		Simulate: -1, Profile: "a100-80gx8", PortBase: 21000, LogTo: os.Stderr,
	}
}

// Validate says what is wrong, naming the flag.
func (c Config) Validate() error {
	for flag, addr := range map[string]string{"--grpc": c.GRPC, "--rest": c.REST, "--metrics": c.Metrics, "--nats": c.NATS} {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return fmt.Errorf("%s %q is not host:port, such as 127.0.0.1:7400", flag, addr)
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return fmt.Errorf("%s %q is not a loopback address; weft up serves this machine only: put a TLS proxy in front of 127.0.0.1, or run the services apart (docs/operating.md)", flag, addr)
		}
	}
	if c.Simulate < -1 || c.Simulate > 64 {
		return fmt.Errorf("--simulate %d: -1 to 64 nodes", c.Simulate)
	}
	if _, err := device.ParseProfile(c.Profile); err != nil {
		return fmt.Errorf("--profile %q: %w", c.Profile, err)
	}
	if n := max(c.Simulate, 2) * PortsPerNode; c.PortBase < 1024 || c.PortBase+n > 65536 {
		return fmt.Errorf("--rank-ports %d: %d ports from there do not fit between 1024 and 65535", c.PortBase, n)
	}
	if c.Dir == "" {
		return errors.New("--data is empty; name a directory")
	}
	return nil
}

// BusyError says that another fabric holds something that this one needs.
type BusyError struct {
	What string
	Flag string
}

func (e *BusyError) Error() string { return e.What }

const (
	lockWithin = 2 * time.Second
	lockRetry  = 50 * time.Millisecond
)

// lock takes the data directory for this process; it is released when the process ends, however it ends.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another with --data", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w; choose another with --data", err)
	}
	// A fabric that was just killed may still be on its way out.
	for begin := time.Now(); unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil; time.Sleep(lockRetry) {
		if time.Since(begin) > lockWithin {
			_ = f.Close()
			return nil, &BusyError{fmt.Sprintf("a fabric runs in %s already", dir), "--data DIR"}
		}
	}
	return f, nil
}

// listen binds an address before anything else starts, so that a taken port is one clear error.
func listen(flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, &BusyError{fmt.Sprintf("%s is in use", addr), flag + " HOST:PORT"}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	return l, nil
}

// writeContext publishes the door by an atomic rename; a reader sees a whole file or none.
func writeContext(dir string, c Context) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, ContextFile+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, ContextFile))
}

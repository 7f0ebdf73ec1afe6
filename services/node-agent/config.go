package nodeagent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/weft-fabric/weft/libs/bus"
)

// Config of one node's agent. Zero fields get what DefaultConfig gives, where it gives something and zero means nothing.
type Config struct {
	Node string `koanf:"node"` // name in the fabric, [a-z0-9-]{1,63}
	Dir  string `koanf:"dir"`  // run directories, logs, bundles; one agent at a time

	SavesDir    string `koanf:"saves_dir"`    // root of the saves that ranks write: <SavesDir>/<tenant>/<job>/<save>/rank-<r>
	SavesShared bool   `koanf:"saves_shared"` // every node of the fabric sees the same SavesDir
	OutputDir   string `koanf:"output_dir"`   // root of WEFT_OUTPUT_DIR; empty = beside SavesDir if that is shared, else in Dir

	Address   string `koanf:"address"`   // at which other nodes reach this node's ranks
	PortBase  int    `koanf:"port_base"` // ports that ranks may use
	PortCount int    `koanf:"port_count"`
	Rack      string `koanf:"rack"`
	Block     string `koanf:"block"`
	Spot      bool   `koanf:"spot"`

	CPU    int64 `koanf:"cpu_milli"`    // thousandths of a core offered; 0 = all that the machine has
	Memory int64 `koanf:"memory_bytes"` // bytes offered; 0 = all that the machine has

	Beat        time.Duration `koanf:"beat"`         // between signs of life
	Fence       time.Duration `koanf:"fence"`        // without contact for this long the node counts as lost; 0 = never
	FenceMargin time.Duration `koanf:"fence_margin"` // ranks are killed this long before; 0 = min(15 s, Fence/4)

	CgroupRoot string `koanf:"cgroup_root"` // where to look for cgroup v2; empty = where it is mounted; "none" = do without
	Version    string `koanf:"-"`           // of this build, for listings
}

// DefaultConfig is a node that offers the whole machine.
func DefaultConfig() Config {
	return Config{PortBase: 20000, PortCount: 2000, Beat: 2 * time.Second, Fence: 10 * time.Minute}
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.PortBase == 0 {
		c.PortBase = d.PortBase
	}
	if c.PortCount == 0 {
		c.PortCount = d.PortCount
	}
	if c.Beat == 0 {
		c.Beat = d.Beat
	}
	if c.FenceMargin == 0 {
		c.FenceMargin = min(15*time.Second, c.Fence/4)
	}
	if c.SavesDir == "" {
		c.SavesDir = filepath.Join(c.Dir, "saves")
	}
	if c.OutputDir == "" {
		if c.SavesShared {
			c.OutputDir = filepath.Join(filepath.Dir(c.SavesDir), "output")
		} else {
			c.OutputDir = filepath.Join(c.Dir, "output")
		}
	}
	return c
}

// Validate says what is wrong, naming the field and the cure.
func (c Config) Validate() error {
	if err := bus.CheckToken(c.Node); err != nil {
		return fmt.Errorf("node: %w; choose a name such as gpu-07", err)
	}
	if !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.SavesDir) || !filepath.IsAbs(c.OutputDir) {
		return errors.New("dir, saves_dir and output_dir must be absolute paths")
	}
	if net.ParseIP(c.Address) == nil {
		return fmt.Errorf("address %q is not an IP address; give the one at which other nodes reach this one", c.Address)
	}
	if c.PortBase < 1024 || c.PortCount < 1 || c.PortBase+c.PortCount > 65536 {
		return fmt.Errorf("ports %d..%d: ranks need ports between 1024 and 65535", c.PortBase, c.PortBase+c.PortCount-1)
	}
	if c.Beat < 0 || c.Fence < 0 || c.FenceMargin < 0 || c.Fence > 0 && c.FenceMargin >= c.Fence {
		return fmt.Errorf("fence %v with margin %v and beat %v: the margin must be shorter than the fence", c.Fence, c.FenceMargin, c.Beat)
	}
	if c.CPU < 0 || c.Memory < 0 {
		return errors.New("cpu and memory must not be negative; 0 offers all that the machine has")
	}
	return nil
}

// OfferSimulated fills in what a simulated node offers beside its devices, where nothing was set; its ranks share this
// machine's real cores and memory.
func (c *Config) OfferSimulated() {
	if c.CPU == 0 {
		c.CPU = 96_000
	}
	if c.Memory == 0 {
		c.Memory = 1 << 40
	}
}

var notToken = regexp.MustCompile(`[^a-z0-9-]+`)

// HostNode is a name for this machine as a node: the host's, without its domain; empty if that has nothing to offer.
func HostNode() string {
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	return nodeName(h)
}

func nodeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	t := strings.Trim(notToken.ReplaceAllString(host, "-"), "-")
	return strings.Trim(t[:min(len(t), 63)], "-")
}

// hostName is free text for listings.
func hostName() string {
	h, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return h
}

package gateway

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/weft-fabric/weft/services/gateway/internal/api"
)

// Config are the settings of the gateway.
type Config struct {
	GRPC   string `koanf:"grpc"`   // address of the gRPC door; port 0 = any free one
	REST   string `koanf:"rest"`   // address of the REST door
	Remote bool   `koanf:"remote"` // allow addresses that other machines reach; end TLS in front of them
	Tokens string `koanf:"tokens"` // token file, see CreateToken

	// Fence of the cell: how long a silent node keeps its jobs. It bounds a job's grace.
	Fence time.Duration `koanf:"fence"`
	// DecideWait is how long a request waits for its decision before the answer is "undecided".
	DecideWait time.Duration `koanf:"decide_wait"`
	// Rate and Burst bound a tenant's calls: a read costs 1, a write 4 a second. Administrators are not bound.
	Rate  float64 `koanf:"rate"`
	Burst float64 `koanf:"burst"`

	Version string `koanf:"-"` // of the program, for GetStatus
}

// DefaultConfig listens on loopback only.
func DefaultConfig() Config {
	return Config{
		GRPC: "127.0.0.1:7400", REST: "127.0.0.1:7401", Fence: 10 * time.Minute, DecideWait: 5 * time.Second,
		Rate: 2000, Burst: 4000, Version: "dev",
	}
}

// Validate names the first setting that is wrong, and its cure.
func (c Config) Validate() error {
	for _, a := range []struct{ name, addr string }{{"grpc", c.GRPC}, {"rest", c.REST}} {
		host, _, err := net.SplitHostPort(a.addr)
		if err != nil {
			return fmt.Errorf("gateway: %s address %q: %w; write host:port such as 127.0.0.1:7400", a.name, a.addr, err)
		}
		if !c.Remote && !loopback(host) {
			return fmt.Errorf("gateway: %s address %q is reachable from other machines, where tokens would travel unencrypted; use 127.0.0.1, or put TLS in front and set remote: true", a.name, a.addr)
		}
	}
	switch {
	case c.Tokens == "":
		return errors.New("gateway: tokens is not set; name the token file")
	case c.Fence < 0:
		return errors.New("gateway: fence is negative; write 0 for no fence, or a duration such as 10m")
	case c.DecideWait <= 0:
		return errors.New("gateway: decide_wait must be positive, such as 5s")
	case c.Rate <= 0 || c.Burst < api.WriteCost:
		return fmt.Errorf("gateway: rate must be positive and burst at least %d, the cost of one write", api.WriteCost)
	}
	return nil
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

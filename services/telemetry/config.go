package telemetry

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// Config are the settings of the telemetry service.
type Config struct {
	Metrics string `koanf:"metrics"` // address of /metrics; port 0 = any free one
	Remote  bool   `koanf:"remote"`  // allow an address that other machines reach: the measurements are not signed-in data

	Raw    time.Duration `koanf:"raw"`    // how long raw samples are kept
	Rollup time.Duration `koanf:"rollup"` // how long one-second rollups are kept
	Settle time.Duration `koanf:"settle"` // how long a missing batch may be late before it counts as lost
}

// DefaultConfig listens on loopback only.
func DefaultConfig() Config {
	return Config{Metrics: "127.0.0.1:7403", Raw: 2 * time.Minute, Rollup: 15 * time.Minute, Settle: 5 * time.Second}
}

// Validate names the first setting that is wrong, and its cure.
func (c Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Metrics)
	if err != nil {
		return fmt.Errorf("telemetry: metrics address %q: %w; write host:port such as 127.0.0.1:7403", c.Metrics, err)
	}
	if ip := net.ParseIP(host); !c.Remote && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("telemetry: metrics address %q is reachable from other machines; use 127.0.0.1, or set remote: true", c.Metrics)
	}
	switch {
	case c.Raw < 10*time.Second || c.Raw > time.Hour:
		return errors.New("telemetry: raw must be from 10s to 1h, such as 2m")
	case c.Rollup < c.Raw || c.Rollup > 24*time.Hour:
		return errors.New("telemetry: rollup must be from raw to 24h, such as 15m")
	case c.Settle < 0 || c.Settle > c.Raw:
		return errors.New("telemetry: settle must be from 0 to raw, such as 5s")
	}
	return nil
}

// Package obs sets up what people see of a process: structured logs on standard error. It owns formats and levels; it
// never decides what is worth logging.
package obs

import (
	"fmt"
	"io"
	"log/slog"
)

// LogConfig says how to log.
type LogConfig struct {
	Level  string `koanf:"level"`  // debug, info, warn or error
	Format string `koanf:"format"` // text or json
}

// DefaultLogConfig is text from info up.
func DefaultLogConfig() LogConfig { return LogConfig{Level: "info", Format: "text"} }

// NewLogger makes a logger, or says what is wrong with the settings.
func NewLogger(w io.Writer, c LogConfig) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", c.Level)
	}
	o := &slog.HandlerOptions{Level: level}
	switch c.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("log format %q: use text or json", c.Format)
}

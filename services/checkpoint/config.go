package checkpoint

import (
	"fmt"
	"path/filepath"
)

// Config are the settings of the checkpoint service.
type Config struct {
	// Dir is the root of the saves, if this process sees the same directory as the nodes do (weft up, a shared file
	// system). Then the service reads every part back itself, before it commits it and before a restore, and it deletes
	// what retention gives up. Empty = it trusts the agents' verification and deletes nothing.
	Dir string `koanf:"saves_dir"`
	// Alone says that no second replica can exist.
	Alone bool `koanf:"alone"`
	// KeepFull and KeepLight are how many committed saves of each class a job keeps; 0 = all of them.
	KeepFull  int `koanf:"keep_full"`
	KeepLight int `koanf:"keep_light"`
}

// DefaultConfig keeps a job's newest three full saves and two light ones.
func DefaultConfig() Config { return Config{KeepFull: 3, KeepLight: 2} }

// Validate names the first setting that is wrong, and its cure.
func (c Config) Validate() error {
	switch {
	case c.Dir != "" && !filepath.IsAbs(c.Dir):
		return fmt.Errorf("checkpoint: saves_dir %q is no absolute path; write it from the root on, or leave it empty to trust the agents", c.Dir)
	case c.KeepFull < 0 || c.KeepLight < 0:
		return fmt.Errorf("checkpoint: keep_full %d and keep_light %d must not be negative; 0 keeps all", c.KeepFull, c.KeepLight)
	}
	return nil
}

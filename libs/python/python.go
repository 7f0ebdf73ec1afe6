// Package python carries weft.py, the helper for training scripts, inside the binary. It never runs Python.
package python

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed weft.py
var module []byte

// Write puts weft.py into dir, which it makes, for PYTHONPATH. It replaces another version atomically, so that scripts
// that are just starting see one or the other.
func Write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("python: %w", err)
	}
	file := filepath.Join(dir, "weft.py")
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, module) {
		return nil
	}
	tmp, err := os.CreateTemp(dir, ".weft-*.py")
	if err != nil {
		return fmt.Errorf("python: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err := tmp.Write(module); err != nil {
		_ = tmp.Close()
		return fmt.Errorf("python: %w", err)
	}
	if err := tmp.Chmod(0o644); err != nil {
		_ = tmp.Close()
		return fmt.Errorf("python: %w", err)
	}
	if err := tmp.Close(); err != nil {
		return fmt.Errorf("python: %w", err)
	}
	if err := os.Rename(tmp.Name(), file); err != nil {
		return fmt.Errorf("python: %w", err)
	}
	return nil
}

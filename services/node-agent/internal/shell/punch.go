package shell

import (
	"os"

	"golang.org/x/sys/unix"
)

// punch frees a file's space up to an offset without moving what follows.
func punch(name string, upTo int64) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, upTo)
}

package proc

import (
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls ended, from another goroutine, once the process has ended (at once if it is gone already). A pidfd in
// the runtime's poller costs no thread while it waits.
func Watch(id ID, ended func()) {
	fd, err := id.Open()
	if err != nil {
		go ended()
		return
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		go ended()
		return
	}
	go func() {
		f := os.NewFile(uintptr(fd), "pidfd")
		defer func() { _ = f.Close() }()
		if c, err := f.SyscallConn(); err == nil {
			_ = c.Read(func(fd uintptr) bool {
				p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
				n, err := unix.Poll(p, 0)
				return err == nil && n == 1 && p[0].Revents != 0
			})
		}
		ended()
	}()
}

//go:build chaos

package killpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var (
	at   string
	left atomic.Int64
)

func init() {
	v := os.Getenv("WEFT_KILL")
	if v == "" {
		return
	}
	_ = os.Unsetenv("WEFT_KILL") // ranks and shims are not meant
	name, n, _ := strings.Cut(v, ":")
	i, err := strconv.ParseInt(n, 10, 64)
	if err != nil || i < 1 {
		panic(fmt.Sprintf("WEFT_KILL=%s: write a point and an arrival, such as %s:1", v, Assign))
	}
	at = name
	left.Store(i)
}

// Reach marks an arrival at a point; the one that WEFT_KILL names does not return.
func Reach(name string) {
	if name == at && left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

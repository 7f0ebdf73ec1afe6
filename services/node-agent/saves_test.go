package nodeagent

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-fabric/weft/services/node-agent/internal/shell"
)

// Saves are looked for twice a second: a tier that is away must not fill the log.
func TestATierThatIsAwayIsNewsOnce(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	dir := filepath.Join(t.TempDir(), "saves")
	scan := scanParts(Config{SavesDir: dir, Node: "n1"})
	look := func(times int) {
		for range times {
			scan(t.Context(), []shell.SaveJob{{Tenant: "acme", Job: "j1"}}, time.Unix(1_700_000_000, 0))
		}
	}
	away := func() {
		if err := os.WriteFile(dir, nil, 0o600); err != nil { // what is no directory cannot be listed, not even by root
			t.Fatal(err)
		}
		look(5)
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	away()
	look(2)
	away()
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings of a tier that was away twice:\n%s", n, &log)
	}
}

package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestALostDiskIsHeardOfInTheLog(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log bytes.Buffer
	lost := watchDisk(slog.NewTextHandler(&log, nil))
	slog.Error("nats: JetStream failed to store a msg on stream 'CORE > LEDGER': maximum messages exceeded")
	slog.Error("a job printed: critical write error: none of ours")
	if len(lost) != 0 {
		t.Fatalf("taken for a lost disk: %q", <-lost)
	}
	for range 3 { // one a stream; nobody may be there to read it
		slog.With("a", 1).WithGroup("g").Error("nats: Filestore [LEDGER] Critical write error: write 1.blk: no space left on device")
	}
	if err := diskError("/data", <-lost).Error(); !strings.Contains(err, "/data") || !strings.Contains(err, "(write 1.blk: no space left on device)") {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "no space left"); n != 3 {
		t.Errorf("%d of 3 records were passed on:\n%s", n, log.String())
	}
}
